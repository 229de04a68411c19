package importer

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pointsman.dev/pointsman/internal/shell"
)

// Command lines: of vLLM production-stack's router, and of the sglang and vllm routers, whose flags are alike.

// flagSet is the flags of one command line, in their order.
type flagSet struct{ list []*flagValue }

// flagValue is one flag with what follows it. The nil flagValue is a flag that is not there.
type flagValue struct {
	name   string
	at     *node
	values []*node
	used   bool
}

// get returns a flag and marks it as read.
func (s flagSet) get(name string) *flagValue {
	for _, f := range s.list {
		if f.name == name {
			f.used = true
			return f
		}
	}
	return nil
}

// one is the flag's first value, "" without one.
func (f *flagValue) one() string {
	if f == nil || len(f.values) == 0 {
		return ""
	}
	return f.values[0].str()
}

// node is the flag's first value with its place, nil without one.
func (f *flagValue) node() *node {
	if f == nil || len(f.values) == 0 {
		return nil
	}
	n := *f.values[0]
	n.path = "--" + f.name
	return &n
}

// all are the flag's values, those of lists with commas one by one.
func (f *flagValue) all() []*node {
	var all []*node
	if f != nil {
		for _, v := range f.values {
			all = append(all, v.list()...)
		}
	}
	return all
}

// flagsOf reads --name value..., --name=value, with dashes or underscores in names; what stands before the first flag is the
// program.
func flagsOf(words []*node) flagSet {
	var s flagSet
	for _, w := range words {
		text := w.str()
		name, value, joined := strings.Cut(strings.TrimPrefix(text, "--"), "=")
		if strings.HasPrefix(text, "--") && name != "" {
			name = strings.TrimPrefix(strings.ReplaceAll(name, "_", "-"), "router-")
			at := *w
			at.path = "--" + printable(name)
			f := &flagValue{name: name, at: &at}
			if joined {
				v := *w
				v.text = value
				f.values = []*node{&v}
			}
			s.list = append(s.list, f)
			continue
		}
		if len(s.list) > 0 {
			last := s.list[len(s.list)-1]
			last.values = append(last.values, w)
		}
	}
	return s
}

// routerFlags are flags that only routers have.
func routerFlags() []string {
	return []string{"--worker-urls", "--static-backends", "--routing-logic", "--service-discovery", "--selector", "--pd-disaggregation"}
}

func isRouter(words []*node) bool {
	return slices.ContainsFunc(words, func(w *node) bool {
		name, _, _ := strings.Cut(strings.ReplaceAll(w.str(), "_", "-"), "=")
		return slices.Contains(routerFlags(), name)
	})
}

// command reads a file that is a command line and not YAML: a script, a unit, a line that was copied. It reports whether it is
// one.
func (im *importer) command(f File) bool {
	if len(f.Data) > maxFile || !utf8.Valid(f.Data) {
		return false
	}
	words := shellWords(string(f.Data), node{file: f.Name, line: 1, col: 1})
	if len(words) == 0 || !isRouter(words) || yamlLike(string(f.Data)) {
		return false
	}
	im.flags(words)
	return true
}

// yamlLike reports whether the first line that says something begins a YAML document.
func yamlLike(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, _, ok := strings.Cut(line, ":")
		return ok && !strings.ContainsAny(key, " \t/") || strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "{") || line == "---"
	}
	return false
}

// shellWords splits a text, of which at is the first line, into words as a shell does.
func shellWords(text string, at node) []*node {
	var words []*node
	for _, w := range shell.Split(text) {
		words = append(words, &node{file: at.file, line: at.line + w.Line - 1, col: at.col, path: at.path, kind: kindText, text: w.Text, used: true})
	}
	return words
}

// flags reads a router's command line.
func (im *importer) flags(words []*node) {
	s := flagsOf(words)
	if s.get("routing-logic") != nil || s.get("static-backends") != nil || s.get("static-models") != nil {
		im.stackFlags(s)
	} else {
		im.routerFlags(s)
	}
	for _, f := range s.list {
		if !f.used {
			im.note(f.at, Unknown, "")
		}
	}
}

// listenOn reads host and port.
func (im *importer) listenOn(s flagSet, host, port string) {
	h := first(s.get("host").one(), host)
	p := s.get("port")
	if p.node() != nil && !isPort(p.one()) {
		im.fail(p.node(), "", "want a port, 1 to 65535", "correct it in this file")
		return
	}
	if strings.Contains(h, ":") {
		h = "[" + h + "]"
	}
	im.plan.listen = h + ":" + first(p.one(), port)
}

// listFlags notes flags of one fate; those that are not there say nothing.
func (im *importer) listFlags(s flagSet, fate Fate, why string, names ...string) {
	for _, f := range s.list {
		for _, name := range names {
			if f.name == name || strings.HasSuffix(name, "*") && strings.HasPrefix(f.name, strings.TrimSuffix(name, "*")) {
				f.used = true
				im.note(f.at, fate, why)
				break
			}
		}
	}
}

// routerFlags reads the flags of the sglang and vllm routers.
func (im *importer) routerFlags(s flagSet) {
	im.listenOn(s, "127.0.0.1", "30000")
	if urls := s.get("worker-urls"); urls != nil {
		p := im.plan.newPool("default")
		for _, v := range urls.all() {
			v.path = "--worker-urls"
			if u, ok := im.origin(v); ok && !slices.Contains(p.endpoints, u) {
				p.endpoints = append(p.endpoints, u)
			}
		}
	}
	im.routerDiscovery(s)
	im.routerPolicy(s.get("policy"))
	im.seconds(s.get("request-timeout-secs").node(), &im.plan.limit)
	im.seconds(s.get("shutdown-grace-period-secs").node(), &im.plan.drain)
	if n, ok := im.whole(s.get("max-payload-size").node(), 1<<10, 4<<30); ok {
		im.plan.maxBody = n
	}
	if n, ok := im.whole(s.get("queue-size").node(), 0, 100_000); ok {
		im.plan.every.queueMax = n
	}
	if s.get("queue-timeout-secs") != nil {
		im.seconds(s.get("queue-timeout-secs").node(), &im.plan.every.queueWait)
	}
	for _, v := range s.get("cors-allowed-origins").all() {
		im.plan.cors = append(im.plan.cors, v.str())
	}
	im.logLevel(s)
	if key := s.get("api-key"); key != nil {
		im.plan.every.needsKey = true
		im.note(key.at, Todo, "write the key into a file and name it in api_key_file")
	}
	im.listFlags(s, Todo, "write tls: {cert_file: ..., key_file: ...} where the files are", "tls-cert-path", "tls-key-path", "server-cert-path", "server-key-path")
	im.listFlags(s, NoCounterpart, "prefill and decode on separate model servers is not supported", "prefill*", "decode*", "pd-disaggregation", "mini-lb",
		"vllm-pd-disaggregation", "vllm-discovery-address", "kv-connector", "bootstrap-port-annotation")
	im.listFlags(s, ByItself, "prefix and load are one cost in seconds; what is held is bounded by the model server's own capacity",
		"cache-threshold", "balance-abs-threshold", "balance-rel-threshold", "eviction-interval*", "max-tree-size", "max-idle-secs", "assignment-mode", "bucket-adjust-interval-secs")
	im.listFlags(s, ByItself, retryWhy, "retry-*", "disable-retries", "cb-*", "disable-circuit-breaker", "health-*", "disable-health-check", "worker-startup-*")
	im.listFlags(s, Todo, "each data-parallel rank with a port of its own is an endpoint: list them", "dp-aware", "intra-node-data-parallel-size")
	im.listFlags(s, ByItself, "endpoints are full at --max-num-seqs of their own", "max-concurrent-requests")
	im.listFlags(s, NoCounterpart, "rates are not limited: requests wait or are refused when endpoints are full", "rate-limit-tokens-per-second")
	im.listFlags(s, ByItself, "metrics are on the admin address", "prometheus-*", "log-dir")
	im.listFlags(s, ByItself, "every model that an endpoint lists is routable", "enable-igw", "backend", "model-path")
	im.listFlags(s, NoCounterpart, "prompts are neither tokenized nor parsed, and nothing is stored", "tokenizer-*", "chat-template", "reasoning-parser", "tool-call-parser",
		"mcp-config-path", "history-backend", "oracle-*", "postgres-*", "redis-*", "request-id-headers", "enable-trace", "otlp-traces-endpoint", "control-plane-*", "jwt-*")
}

// routerDiscovery reads the selector of pods.
func (im *importer) routerDiscovery(s flagSet) {
	selector, port := s.get("selector"), s.get("service-discovery-port")
	namespace := s.get("service-discovery-namespace").one()
	if s.get("service-discovery") == nil || selector == nil {
		return
	}
	var labels []string
	for _, v := range selector.all() {
		labels = append(labels, v.str())
	}
	im.podPool(selector.at, strings.Join(labels, ","), namespace, first(port.one(), "80"))
}

// podPool makes a pool of the pods that a selector finds.
func (im *importer) podPool(at *node, selector, namespace, port string) {
	if !isPort(port) || selector == "" {
		im.fail(at, "", "want a selector and a port", "like app=vllm and 8000")
		return
	}
	p := im.plan.newPool("default")
	p.kube = kubeSource{selector: selector, namespace: namespace, ports: []string{port}}
}

func (im *importer) routerPolicy(policy *flagValue) {
	switch policy.one() {
	case "", "cache_aware":
	case "random", "round_robin", "power_of_two":
		im.plan.every.policy = "least_request"
		im.note(policy.at, Todo, "hence policy: least_request; without that line prefixes count where the model servers cache them")
	case "consistent_hash", "sticky_round_robin", "manual", "prefix_hash":
		im.note(policy.at, ByItself, "a conversation stays where its prefix is; it is not bound to that endpoint")
	default:
		im.fail(policy.node(), printable(policy.one()), "no policy that is known", "known are cache_aware, random, round_robin, power_of_two, consistent_hash, manual")
	}
}

// logLevel reads the levels of Python and Rust.
func (im *importer) logLevel(s flagSet) {
	level := s.get("log-level")
	switch v := level.one(); v {
	case "", "info":
	case "debug", "warn", "error":
		im.plan.logLevel = v
	case "warning":
		im.plan.logLevel = "warn"
	case "critical":
		im.plan.logLevel = "error"
	case "trace":
		im.plan.logLevel = "debug"
	default:
		im.fail(level.node(), printable(v), "no level that is known", "known are debug, info, warning, error, critical")
	}
}

// stackFlags reads the flags of vLLM production-stack's router.
func (im *importer) stackFlags(s flagSet) {
	im.listenOn(s, "0.0.0.0", "8001")
	discovery, urls := s.get("service-discovery"), s.get("static-backends")
	names, aliases := s.get("static-models").all(), s.get("static-aliases").all()
	selector, port, namespace := s.get("k8s-label-selector"), s.get("k8s-port"), s.get("k8s-namespace").one()
	switch {
	case urls != nil:
		im.static(urls, names)
	case discovery.one() == "k8s":
		im.podPool(first(selector, discovery).at, selector.one(), first(namespace, "default"), first(port.one(), "8000"))
	}
	if urls != nil || discovery.one() != "k8s" {
		im.listFlags(s, Todo, "it is for pods that Kubernetes finds, which nothing here asks for: where they are meant, correct the pools' selectors",
			"k8s-label-selector", "k8s-port", "k8s-namespace")
	}
	for _, a := range aliases {
		name, to, ok := strings.Cut(a.str(), ":")
		if !ok || name == "" || to == "" {
			im.fail(a, "", "want ALIAS:MODEL", "like fast:meta-llama/Llama-3.1-8B")
			continue
		}
		entry := im.plan.newModel(name)
		entry.pools = []modelPool{{"", to}}
	}
	im.routingLogic(s.get("routing-logic"), s.get("session-key"))
	im.logLevel(s)
	im.listFlags(s, ByItself, "model servers' pages are read every 200 ms", "engine-stats-interval", "request-stats-window", "log-stats*")
	im.listFlags(s, ByItself, "endpoints show by answering that they work", "static-backend-health-checks", "backend-health-check-timeout-seconds", "static-model-types",
		"k8s-watcher-timeout-seconds", "k8s-service-discovery-type")
	im.listFlags(s, NoCounterpart, "prefill and decode on separate model servers is not supported", "prefill-model-labels", "decode-model-labels", "static-model-labels")
	im.listFlags(s, NoCounterpart, "bodies pass byte for byte, and nothing is stored", "callbacks", "request-rewriter", "enable-batch-api", "file-storage-*", "batch-processor",
		"feature-gates", "semantic-cache-*")
	im.listFlags(s, NoCounterpart, "metrics and access records are its own", "sentry-*", "otel-*")
	im.listFlags(s, ByItself, "prefixes are known from what was sent and from the model servers' reports", "lmcache-*", "kv-aware-threshold")
	im.listFlags(s, Todo, "import that file too", "dynamic-config-yaml", "dynamic-config-json")
}

// static makes a pool of each model's backends.
func (im *importer) static(urls *flagValue, names []*node) {
	all := urls.all()
	if len(names) > 0 && len(names) != len(all) {
		im.fail(urls.at, "", "has "+strconv.Itoa(len(all))+" backends for "+strconv.Itoa(len(names))+" models", "write one model for each backend")
		return
	}
	pools := map[string]*pool{}
	for i, v := range all {
		v.path = "--static-backends"
		name := "default"
		if len(names) > 0 {
			name = names[i].str()
		}
		u, ok := im.origin(v)
		if !ok {
			continue
		}
		if pools[name] == nil {
			pools[name] = im.plan.newPool(name)
		}
		if !slices.Contains(pools[name].endpoints, u) {
			pools[name].endpoints = append(pools[name].endpoints, u)
		}
	}
}

func (im *importer) routingLogic(logic, key *flagValue) {
	switch logic.one() {
	case "", "prefixaware", "kvaware":
	case "roundrobin":
		im.plan.every.policy = "least_request"
		im.note(logic.at, Todo, "hence policy: least_request; without that line prefixes count where the model servers cache them")
	case "session":
		im.note(logic.at, ByItself, "a conversation stays where its prefix is; it is not bound to that endpoint")
	case "disaggregated_prefill", "disaggregated_prefill_orchestrated":
		im.note(logic.at, NoCounterpart, "prefill and decode on separate model servers is not supported")
	case "priority", "ttft":
		im.note(logic.at, ByItself, "picks minimise expected seconds; the queue goes by priority")
	default:
		im.fail(logic.node(), printable(logic.one()), "no routing logic that is known", "known are roundrobin, session, prefixaware, kvaware, disaggregated_prefill, priority")
	}
	if key != nil {
		im.note(key.at, ByItself, "a conversation is known by its prefix, not by a header")
	}
}
