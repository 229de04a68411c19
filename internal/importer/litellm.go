package importer

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LiteLLM: the deployments of model_list that are one's own model servers.

// ownServer are the providers of LiteLLM that are an OpenAI API at an address.
func ownServer() []string {
	return []string{"openai", "hosted_vllm", "openai_like", "custom_openai", "text-completion-openai", "vllm", "lm_studio", "litellm_proxy"}
}

// liteLLM reads a LiteLLM proxy's configuration.
func (im *importer) liteLLM(doc *node) {
	pools := map[string]*pool{} // by what makes endpoints one pool
	list := doc.get("model_list")
	if list.kind != kindList {
		im.fail(list, "", "want a list", "each with model_name and litellm_params")
		return
	}
	for _, m := range list.list() {
		m.used = true
		im.deployment(m, pools)
	}
	im.tidyModels()
	lite := doc.get("litellm_settings")
	im.seconds(lite.get("request_timeout"), &im.plan.limit)
	im.fallbacks(lite)
	im.liteRouter(doc.get("router_settings")) // aliases last: they have what their model has
	for _, key := range []string{"num_retries", "allowed_fails", "cooldown_time"} {
		im.note(lite.peek(key), ByItself, retryWhy)
	}
	im.note(lite.peek("drop_params"), NoCounterpart, "bodies pass byte for byte")
	for _, key := range []string{"success_callback", "failure_callback", "callbacks", "service_callbacks", "cache", "cache_params", "set_verbose", "json_logs"} {
		im.note(lite.peek(key), NoCounterpart, "metrics and access records are its own; answers are neither cached nor logged")
	}
	general := doc.get("general_settings")
	im.note(general.peek("master_key"), NoCounterpart, "clients are not authenticated: keep something in front that does, or a network policy")
	for _, key := range []string{"database_url", "store_model_in_db", "alerting", "proxy_batch_write_at", "custom_auth"} {
		im.note(general.peek(key), NoCounterpart, "there are no users, budgets and keys of its own, and no database")
	}
	im.note(doc.peek("environment_variables"), NoCounterpart, "nothing is read from the environment")
	im.note(doc.peek("mcp_servers"), NoCounterpart, "it is a gateway for inference alone")
}

const retryWhy = "what did not reach a model server goes to another one; what may have run is never sent again; endpoints that fail are ejected"

// deployment reads one entry of model_list.
func (im *importer) deployment(m *node, pools map[string]*pool) {
	name, params := m.get("model_name"), m.get("litellm_params")
	im.note(m.peek("model_info"), ByItself, "windows and capacities are asked from the model servers")
	if name.str() == "" || params == nil {
		im.fail(m, "", "an entry without model_name or litellm_params", "remove it, or write both")
		return
	}
	provider, serves, ok := strings.Cut(params.get("model").str(), "/")
	base := params.get("api_base")
	if !ok || !slices.Contains(ownServer(), provider) || base == nil {
		im.note(m, NoCounterpart, "a hosted provider: keep LiteLLM for it, and let it use Pointsman as an api_base for your own model servers")
		return
	}
	if strings.Contains(name.str(), "*") || strings.Contains(serves, "*") {
		im.note(m, ByItself, "every model that an endpoint lists is routable under its own name")
		serves = ""
	}
	u, ok := im.origin(base)
	if !ok {
		return
	}
	key := params.get("api_key")
	p := pools[name.str()+"\x00"+serves+"\x00"+key.str()]
	if p == nil {
		p = im.plan.newPool(name.str())
		pools[name.str()+"\x00"+serves+"\x00"+key.str()] = p
		im.joinModel(name.str(), serves, p)
	}
	if !slices.Contains(p.endpoints, u) {
		p.endpoints = append(p.endpoints, u)
	}
	if k := key.str(); key != nil && !slices.Contains([]string{"", "none", "None", "EMPTY", "empty", "dummy", "fake", "fake-key", "not-needed"}, k) {
		im.note(key, Todo, "write the key into a file and name it: api_key_file of pool "+p.name)
		p.needsKey = true
	}
	im.deploymentLimits(name.str(), params)
}

func (im *importer) joinModel(name, serves string, p *pool) {
	if serves == "" {
		return
	}
	entry := im.plan.newModel(name)
	entry.pools = append(entry.pools, modelPool{p.name, serves})
}

// deploymentLimits reads what else stands in litellm_params.
func (im *importer) deploymentLimits(name string, params *node) {
	for key, dst := range map[string]func(*model) *time.Duration{
		"timeout":        func(m *model) *time.Duration { return &m.limit },
		"stream_timeout": func(m *model) *time.Duration { return &m.first },
	} {
		if n := params.get(key); n != nil {
			im.seconds(n, dst(im.plan.newModel(name)))
		}
	}
	for _, key := range []string{"rpm", "tpm", "max_parallel_requests", "weight", "order"} {
		im.note(params.peek(key), ByItself, "requests go where they are done first; a model server that is full gets none")
	}
	for _, key := range []string{"max_retries", "num_retries"} {
		im.note(params.peek(key), ByItself, retryWhy)
	}
	for _, key := range []string{"temperature", "max_tokens", "extra_headers", "input_cost_per_token", "output_cost_per_token"} {
		im.note(params.peek(key), NoCounterpart, "bodies and headers pass as clients send them; nothing is charged")
	}
}

// origin makes an endpoint of a base URL.
func (im *importer) origin(base *node) (string, bool) {
	u, err := url.Parse(base.str())
	if strings.HasPrefix(base.str(), "os.environ/") {
		im.fail(base, printable(base.str()), "an address in the environment", "write the URL in its place")
		return "", false
	}
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		im.fail(base, "", "want a URL", "like http://10.0.0.3:8000/v1")
		return "", false
	}
	if u.User != nil {
		im.note(base, Todo, "the user and password of the URL: write the key into a file and name it in api_key_file")
	}
	if path := strings.Trim(u.Path, "/"); path != "" && path != "v1" {
		im.note(base, NoCounterpart, "the path: an endpoint has none, requests keep their own")
	}
	return u.Scheme + "://" + u.Host, true
}

// seconds stores a number of seconds.
func (im *importer) seconds(n *node, dst *time.Duration) {
	if n == nil {
		return
	}
	v, err := strconv.ParseFloat(n.str(), 64)
	if err != nil || !(v >= 0.1 && v <= 604800) {
		im.fail(n, "", "want seconds, 0.1 to 604800", "correct it in this file")
		return
	}
	*dst = time.Duration(v*1000) * time.Millisecond
}

// liteRouter reads router_settings.
func (im *importer) liteRouter(r *node) {
	if r == nil {
		return
	}
	im.seconds(r.get("timeout"), &im.plan.limit)
	im.seconds(r.get("stream_timeout"), &im.plan.first)
	im.note(r.peek("routing_strategy"), ByItself, "every pick is by prefix, queue and KV memory")
	im.note(r.peek("routing_strategy_args"), ByItself, "every pick is by prefix, queue and KV memory")
	for _, key := range []string{"num_retries", "retry_after", "allowed_fails", "cooldown_time", "retry_policy", "allowed_fails_policy", "disable_cooldowns"} {
		im.note(r.peek(key), ByItself, retryWhy)
	}
	for _, key := range []string{"redis_host", "redis_port", "redis_password", "redis_url", "cache_responses"} {
		im.note(r.peek(key), ByItself, "there is no Redis: replicas tell each other their picks, see docs/replicas.md")
	}
	im.note(r.peek("enable_pre_call_checks"), ByItself, "a prompt that does not fit goes to the next larger window")
	im.fallbacks(r)
	aliases := r.get("model_group_alias")
	for i := range aliases.pairs() {
		k := aliases.keys[i]
		to := k.val.str()
		if k.val.kind == kindMap {
			to = k.val.get("model").str()
			im.note(k.val.peek("hidden"), NoCounterpart, "/v1/models lists every name")
		}
		k.val.used = true
		im.alias(k.val, k.name, to)
	}
}

// pairs are the keys of a mapping; none of anything else.
func (n *node) pairs() []pair {
	if n == nil {
		return nil
	}
	return n.keys
}

// alias gives a model another name.
func (im *importer) alias(at *node, name, to string) {
	for _, m := range im.plan.models {
		if m.name == to {
			entry := im.plan.newModel(name)
			entry.pools, entry.limit, entry.first = slices.Clone(m.pools), m.limit, m.first
			return
		}
	}
	if p := im.poolOf(to); p != nil {
		im.plan.newModel(name).pools = []modelPool{{p.name, to}}
		return
	}
	im.fail(at, printable(to), "no model of that name is here", "correct it, or remove the line")
}

func (im *importer) poolOf(modelName string) *pool {
	for _, p := range im.plan.pools {
		if p.name == poolName(modelName) {
			return p
		}
	}
	return nil
}

// fallbacks reads those that a window decides, and lists the others.
func (im *importer) fallbacks(n *node) {
	for _, item := range n.get("context_window_fallbacks").list() {
		item.use()
		for _, k := range item.pairs() {
			for _, to := range k.val.list() {
				im.larger(to, k.name, to.str())
			}
		}
	}
	for _, key := range []string{"fallbacks", "default_fallbacks", "content_policy_fallbacks"} {
		im.note(n.peek(key), NoCounterpart, "a request is never answered by another model than the one it names")
	}
}

// larger lets the pools of one model take what is too long for another one.
func (im *importer) larger(at *node, from, to string) {
	var small, large *model
	for _, m := range im.plan.models {
		if m.name == from {
			small = m
		}
		if m.name == to {
			large = m
		}
	}
	if small == nil || large == nil {
		im.note(at, NoCounterpart, "one of the two models is not at a model server of one's own")
		return
	}
	for _, p := range large.pools {
		if !slices.Contains(small.pools, p) {
			small.pools = append(small.pools, p)
		}
	}
}

// tidyModels makes one pool of pools of which one has all endpoints of the other: a request goes to those that list its model.
func (im *importer) tidyModels() {
	var kept []*pool
	renamed := map[string]string{}
	for _, p := range im.plan.pools {
		same := slices.IndexFunc(kept, func(q *pool) bool {
			return !p.needsKey && !q.needsKey && (within(p.endpoints, q.endpoints) || within(q.endpoints, p.endpoints))
		})
		if same >= 0 {
			renamed[p.name] = kept[same].name
			if len(p.endpoints) > len(kept[same].endpoints) {
				kept[same].endpoints = p.endpoints
			}
			continue
		}
		kept = append(kept, p)
	}
	im.plan.pools = kept
	for _, m := range im.plan.models {
		for i := range m.pools {
			m.pools[i].pool = first(renamed[m.pools[i].pool], m.pools[i].pool)
		}
		m.pools = slices.CompactFunc(m.pools, func(a, b modelPool) bool { return a == b })
	}
}

// within reports whether b has everything that a has.
func within(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}
