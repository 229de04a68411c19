package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The keys of the file, one table per mapping. A new key is a row here, a field in Config, a line in yaml.go and a
// section in docs/config.md (a test compares them).

const (
	shortest = 100 * time.Millisecond // of a limit
	longest  = 168 * time.Hour        // of every time

	maxPools     = 256
	maxModels    = 4096
	maxEndpoints = 4096 // what a pool's prefix index can tell apart
)

func topFields(c *Config) []field {
	return []field{
		{"listen", func(d *decoder, v value) { d.address(v, &c.Listen) }},
		{"admin", func(d *decoder, v value) { d.address(v, &c.Admin) }},
		{"limit", func(d *decoder, v value) { d.duration(v, &c.Limit, shortest, longest) }},
		{"first_byte", func(d *decoder, v value) { d.duration(v, &c.FirstByte, shortest, longest) }},
		{"idle", func(d *decoder, v value) { d.duration(v, &c.Idle, shortest, longest) }},
		{"drain", func(d *decoder, v value) { d.pause(v, &c.Drain, 0, longest) }},
		{"drain_delay", func(d *decoder, v value) { d.pause(v, &c.DrainDelay, 0, 10*time.Minute) }},
		{"keepalive", func(d *decoder, v value) { d.pause(v, &c.KeepAlive, time.Second, 10*time.Minute) }},
		{"max_body", func(d *decoder, v value) { d.size(v, &c.MaxBody, 1<<10, 4<<30) }},
		{"cut_stream", func(d *decoder, v value) {
			if i, ok := d.oneOf(v, cutStreams()); ok {
				c.CutStream = CutStream(i)
			}
		}},
		{"cors", func(d *decoder, v value) { c.CORS = new(CORS); d.object(v, corsFields(c.CORS)) }},
		{"tls", func(d *decoder, v value) { c.TLS = new(TLS); d.object(v, tlsFields(c.TLS)) }},
		{"extproc", func(d *decoder, v value) {
			c.ExtProc = &ExtProc{Listen: defaultExtProcListen}
			d.object(v, extProcFields(c.ExtProc))
		}},
		{"peers", func(d *decoder, v value) {
			c.Peers = &Peers{Listen: defaultPeersListen}
			d.object(v, peersFields(c.Peers))
		}},
		{"kubernetes", func(d *decoder, v value) {
			c.Kubernetes = new(KubernetesAccess)
			d.object(v, accessFields(c.Kubernetes))
		}},
		{"debug_headers", func(d *decoder, v value) { d.boolean(v, &c.DebugHeaders) }},
		{"log", func(d *decoder, v value) { d.object(v, logFields(&c.Log)) }},
		{"pools", func(d *decoder, v value) { d.pools(v, c) }},
		{"models", func(d *decoder, v value) { d.models(v, c) }},
	}
}

func corsFields(c *CORS) []field {
	return []field{{"origins", func(d *decoder, v value) { d.origins(v, &c.Origins) }}}
}

func tlsFields(t *TLS) []field {
	return []field{
		{"cert_file", func(d *decoder, v value) { d.pemPath(v, &t.CertFile) }},
		{"key_file", func(d *decoder, v value) { d.pemPath(v, &t.KeyFile) }},
	}
}

func queueFields(q *Queue) []field {
	return []field{
		{"max", func(d *decoder, v value) { d.integer(v, &q.Max, 0, 100_000) }},
		{"wait", func(d *decoder, v value) { d.pause(v, &q.Wait, 0, longest) }},
	}
}

func logFields(l *Log) []field {
	return []field{
		{"format", func(d *decoder, v value) {
			if i, ok := d.oneOf(v, logFormats()); ok {
				l.Format = LogFormat(i)
			}
		}},
		{"level", func(d *decoder, v value) {
			if i, ok := d.oneOf(v, logLevels()); ok {
				l.Level = levelOf(i)
			}
		}},
		{"prefix_hashes", func(d *decoder, v value) { d.boolean(v, &l.PrefixHashes) }},
	}
}

func poolFields(p *Pool) []field {
	return []field{
		{"name", func(d *decoder, v value) { d.poolName(v, &p.Name) }},
		{"endpoints", func(d *decoder, v value) { d.endpoints(v, &p.Endpoints) }},
		{"file", func(d *decoder, v value) { d.path(v, &p.File) }},
		{"dns", func(d *decoder, v value) { d.dnsName(v, &p.DNS) }},
		{"kubernetes", func(d *decoder, v value) {
			p.Kubernetes = new(KubernetesSource)
			d.object(v, kubernetesFields(p.Kubernetes))
		}},
		{"policy", func(d *decoder, v value) {
			if i, ok := d.oneOf(v, policies()); ok {
				p.Policy = Policy(i)
			}
		}},
		{"gates", func(d *decoder, v value) {
			if i, ok := d.oneOf(v, gates()); ok {
				p.Gates = Gates(i)
			}
		}},
		{"full", func(d *decoder, v value) { d.object(v, fullFields(&p.Full)) }},
		{"when_full", func(d *decoder, v value) {
			if i, ok := d.oneOf(v, whenFulls()); ok {
				p.WhenFull = WhenFull(i)
			}
		}},
		{"queue", func(d *decoder, v value) { d.object(v, queueFields(&p.Queue)) }},
		{"hold", func(d *decoder, v value) { d.pause(v, &p.Hold, 0, longest) }},
		{"warm", func(d *decoder, v value) { d.warm(v, &p.Warm) }},
		{"overflow", func(d *decoder, v value) {
			if v.kind == kindText && Closest(v.text, []string{"true", "false", "yes", "no", "on", "off"}) == "" {
				d.fail(v, "want true or false", "write true: the next pool is the one after it in models[].pools")
				return
			}
			d.boolean(v, &p.Overflow)
		}},
		{"api_key_file", func(d *decoder, v value) { d.keyFile(v, p) }},
	}
}

func (d *decoder) warm(v value, all *[]WarmRequest) {
	for _, item := range d.list(v, "warm-up requests", 16) {
		w := WarmRequest{Output: 1, AtOnce: 1}
		before := len(d.errs)
		d.object(item, warmFields(&w))
		if len(d.errs) == before && w.Prompt == 0 {
			d.fail(item, "has no prompt", "write how many tokens it has: {prompt: 2000}")
		}
		*all = append(*all, w)
	}
}

func warmFields(w *WarmRequest) []field {
	return []field{
		{"prompt", func(d *decoder, v value) { d.integer(v, &w.Prompt, 1, 1_000_000) }},
		{"output", func(d *decoder, v value) { d.integer(v, &w.Output, 1, 10_000) }},
		{"at_once", func(d *decoder, v value) { d.integer(v, &w.AtOnce, 1, 256) }},
	}
}

func fullFields(f *Full) []field {
	return []field{
		{"waiting", func(d *decoder, v value) { d.integer(v, &f.Waiting, 1, 10_000) }},
		{"max_num_seqs", func(d *decoder, v value) {
			switch {
			case v.kind == kindText && v.text == "auto":
				f.MaxNumSeqs = 0
			case v.kind == kindInt:
				d.integer(v, &f.MaxNumSeqs, 1, 100_000)
			default:
				d.fail(v, "want auto or a whole number from 1 to 100000", toDefault)
			}
		}},
		{"projected_kv", func(d *decoder, v value) { d.share(v, &f.ProjectedKV) }},
		{"long_prompt", func(d *decoder, v value) { d.integer(v, &f.LongPrompt, 1, 100_000_000) }},
	}
}

func modelFields(m *Model) []field {
	return []field{
		{"name", func(d *decoder, v value) { d.modelName(v, &m.Name) }},
		{"serves", func(d *decoder, v value) { d.modelName(v, &m.Serves) }},
		{"pools", func(d *decoder, v value) { d.modelPools(v, m) }},
		{"limit", func(d *decoder, v value) { d.duration(v, &m.Limit, shortest, longest) }},
		{"first_byte", func(d *decoder, v value) { d.duration(v, &m.FirstByte, shortest, longest) }},
		{"idle", func(d *decoder, v value) { d.duration(v, &m.Idle, shortest, longest) }},
	}
}

func modelPoolFields(p *ModelPool) []field {
	return []field{
		{"pool", func(d *decoder, v value) { d.str(v, &p.Pool) }},
		{"serves", func(d *decoder, v value) { d.modelName(v, &p.Serves) }},
	}
}

// Keys returns the path of every key, sorted, with [] for an element of a list: pools[].full.waiting.
func Keys() []string {
	all := keysUnder("", topFields(&Config{}))
	slices.Sort(all)
	return all
}

// keysUnder lists keys in the order of the tables, each before those inside it.
func keysUnder(path string, fields []field) []string {
	inside := map[string][]field{
		"log": logFields(&Log{}), "cors": corsFields(&CORS{}), "tls": tlsFields(&TLS{}),
		"extproc": extProcFields(&ExtProc{}), "extproc.tls": tlsFields(&TLS{}),
		"peers": peersFields(&Peers{}), "peers.tls": peersTLSFields(&PeersTLS{}),
		"kubernetes": accessFields(&KubernetesAccess{}), "pools[].kubernetes": kubernetesFields(&KubernetesSource{}),
		"pools[]": poolFields(&Pool{}), "pools[].full": fullFields(&Full{}), "pools[].queue": queueFields(&Queue{}),
		"pools[].warm[]": warmFields(&WarmRequest{}),
		"models[]":       modelFields(&Model{}), "models[].pools[]": modelPoolFields(&ModelPool{}),
	}
	var all []string
	for _, f := range fields {
		key := join(path, f.name)
		all = append(all, key)
		all = append(all, keysUnder(key, inside[key])...)
		all = append(all, keysUnder(key+"[]", inside[key+"[]"])...)
	}
	return all
}

// list checks that v is a list with 1 to most elements and returns them.
func (d *decoder) list(v value, of string, most int) []value {
	if v.kind != kindList {
		d.wrongKind(v, "a list of "+of)
		return nil
	}
	items := d.items(v)
	if len(items) == 0 {
		d.fail(v, "is an empty list", "add an entry")
	}
	if len(items) > most {
		d.fail(v, fmt.Sprintf("has %d entries, more than %d", len(items), most), "split it")
		return nil
	}
	for _, item := range items {
		d.seen[item.path] = item
	}
	return items
}

func (d *decoder) pools(v value, c *Config) {
	for _, item := range d.list(v, "pools", maxPools) {
		p := DefaultPool("")
		d.object(item, poolFields(&p))
		c.Pools = append(c.Pools, p)
	}
}

func (d *decoder) models(v value, c *Config) {
	for _, item := range d.list(v, "models", maxModels) {
		var m Model
		d.object(item, modelFields(&m))
		c.Models = append(c.Models, m)
	}
}

func (d *decoder) modelPools(v value, m *Model) {
	for _, item := range d.list(v, "pool names", maxPools) {
		p := ModelPool{}
		if item.kind == kindMap {
			d.object(item, modelPoolFields(&p))
		} else {
			d.str(item, &p.Pool)
		}
		m.Pools = append(m.Pools, p) // also a bad one, so that indices stay those of the file
	}
}

func (d *decoder) endpoints(v value, dst *[]string) {
	first := map[string]int{}
	for _, item := range d.list(v, "URLs", maxEndpoints) {
		var u string
		if !d.endpoint(item, &u) {
			continue
		}
		if line, again := first[u]; again {
			d.fail(item, fmt.Sprintf("the same endpoint as in line %d", line), "remove one of them")
			continue
		}
		first[u] = item.line
		*dst = append(*dst, u)
	}
}

// poolName stores a pool's name, which becomes a metric label.
func (d *decoder) poolName(v value, dst *string) {
	var name string
	if !d.str(v, &name) {
		return
	}
	if !isPoolName(name) {
		hint := "like chat-8k"
		if fixed := strings.ReplaceAll(strings.ToLower(name), " ", "-"); isPoolName(fixed) && !looksSecret(name) {
			hint = "write " + clip(fixed)
		}
		d.fail(v, "a pool's name has lower case letters, digits, '-', '_' and '.', and starts with a letter or digit", hint)
		return
	}
	if len(name) > 63 {
		d.fail(v, "a pool's name has at most 63 characters", "it is a metric label: keep it short")
		return
	}
	*dst = name
}

func isPoolName(name string) bool {
	for i, r := range name {
		alnum := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || r != '-' && r != '_' && r != '.') {
			return false
		}
	}
	return true
}

func (d *decoder) modelName(v value, dst *string) {
	var name string
	if !d.str(v, &name) {
		return
	}
	if len(name) > 256 {
		d.fail(v, "a model's name has at most 256 bytes", "take the name that the endpoints list")
		return
	}
	*dst = name
}

// path stores a file's path, joined to the folder of the configuration.
func (d *decoder) path(v value, dst *string) bool {
	var p string
	if !d.str(v, &p) {
		return false
	}
	if !filepath.IsAbs(p) {
		p = filepath.Join(filepath.Dir(d.name), p)
	}
	*dst = p
	return true
}
