package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"
)

// Rules that hold between keys. Each looks only at values that were read, so that one mistake is reported once.

// check applies every rule, and resolves the defaults that depend on other keys.
func (d *decoder) check(c *Config) {
	d.checkSockets(c)
	d.checkTimes(c)
	d.checkListener(c)
	d.checkPeers(c)
	d.checkExtProc(c)
	d.checkPools(c)
	d.checkKubernetes(c)
	d.checkModels(c)
	d.checkDrain(c)
	d.checkLoops(c)
	d.advise(c)
}

// top returns the value of a key, or the top of the file for one that is not set.
func (d *decoder) top(key string) value {
	if v, ok := d.seen[key]; ok {
		return v
	}
	v := value{file: d.name, line: 1, col: 1, path: key}
	if d.name == "" {
		v.file, v.line, v.path = "--endpoint", 0, ""
	}
	return v
}

// checkSockets refuses two servers on one socket.
func (d *decoder) checkSockets(c *Config) {
	lh, lp, err1 := net.SplitHostPort(c.Listen)
	ah, ap, err2 := net.SplitHostPort(c.Admin)
	if err1 != nil || err2 != nil || lp != ap || lp == "0" || d.failed("listen") || d.failed("admin") {
		return
	}
	if lh != ah && !everyInterface(lh) && !everyInterface(ah) {
		return
	}
	at := d.top("admin")
	if _, set := d.seen["admin"]; !set {
		at = d.top("listen")
		d.fail(at, "admin listens on "+c.Admin+" unless told otherwise", "take another port, or set admin")
		return
	}
	d.fail(at, "the same socket as listen, "+c.Listen, "give admin a port of its own")
}

// failed reports whether the value of a key was refused, so that its default stands in the configuration.
func (d *decoder) failed(key string) bool {
	v, set := d.seen[key]
	return set && slices.ContainsFunc(d.errs, func(e *Error) bool {
		return e.File == v.file && e.Line == v.line && e.Column == v.col && e.Key == v.path
	})
}

func everyInterface(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

// checkPools: at least one, unique names, one source each.
func (d *decoder) checkPools(c *Config) {
	if _, set := d.seen["pools"]; !set {
		hint := "add pools: [{name: main, endpoints: [http://127.0.0.1:8000]}]"
		if d.name == "" {
			d.failShowing(d.top("pools"), "", "a gateway needs an endpoint", "give at least one, like --endpoint http://127.0.0.1:8000, or --config FILE")
			return
		}
		d.failShowing(d.top("pools"), "", "a gateway needs at least one pool", hint)
		return
	}
	lines := map[string]int{}
	for i := range c.Pools {
		path := fmt.Sprintf("pools[%d]", i)
		item, ok := d.seen[path]
		if !ok || item.kind != kindMap {
			continue
		}
		d.required(item, "name", "every pool needs a name")
		if name, ok := d.seen[path+".name"]; ok && c.Pools[i].Name != "" {
			if first, again := lines[c.Pools[i].Name]; again {
				d.fail(name, fmt.Sprintf("the pool in line %d has the same name", first), "names must differ")
			} else {
				lines[c.Pools[i].Name] = name.line
			}
		}
		d.checkSources(item, path)
	}
}

// required records that a key is missing in a mapping, unless a key is there that nobody knows: it may be the one.
func (d *decoder) required(item value, key, rule string) {
	if _, misspelt := d.seen[item.path+"."+unknown]; misspelt {
		return
	}
	if _, ok := d.seen[item.path+"."+key]; ok {
		return
	}
	item.path += "." + key
	d.failShowing(item, "", "missing: "+rule, "add "+key+": ...")
}

// checkSources demands exactly one of endpoints, file, dns and kubernetes.
func (d *decoder) checkSources(item value, path string) {
	var first *value
	for _, key := range []string{"endpoints", "file", "dns", "kubernetes"} {
		v, ok := d.seen[path+"."+key]
		switch {
		case !ok:
		case first == nil:
			first = &v
		default:
			a, b := *first, v
			if a.line > b.line || a.line == b.line && a.col > b.col {
				a, b = b, a
			}
			d.failShowing(b, "", fmt.Sprintf("a pool has one source of endpoints, and this one has %s in line %d", a.path[len(path)+1:], a.line),
				"keep one of endpoints, file, dns and kubernetes")
			return
		}
	}
	if first == nil {
		d.failShowing(item, "", "has no endpoints", "add one of endpoints: [http://10.0.0.3:8000], file: endpoints.yaml, dns: vllm.ns.svc:8000, kubernetes: {service: vllm}")
	}
}

// checkModels: unique names, known pools, something said; fills in what is left out.
func (d *decoder) checkModels(c *Config) {
	lines := map[string]int{}
	for i := range c.Models {
		m, path := &c.Models[i], fmt.Sprintf("models[%d]", i)
		item := d.seen[path]
		if item.kind != kindMap {
			continue
		}
		d.required(item, "name", "every model needs a name")
		name, named := d.seen[path+".name"]
		_, serves := d.seen[path+".serves"]
		_, pools := d.seen[path+".pools"]
		timed := d.checkModelTimes(c, m, path)
		if named && m.Name != "" {
			if first, again := lines[m.Name]; again {
				d.fail(name, fmt.Sprintf("the model in line %d has the same name", first), "list all its pools in one entry")
			} else {
				lines[m.Name] = name.line
			}
		}
		if _, misspelt := d.seen[path+"."+unknown]; named && !serves && !pools && !timed && !misspelt {
			d.fail(name, "the entry says nothing about the model", "add serves, pools or a limit; a model that endpoints list is routable without an entry")
		}
		d.checkModelPools(c, m, path)
	}
}

// checkModelPools resolves a model's pools.
func (d *decoder) checkModelPools(c *Config, m *Model, path string) {
	if m.Serves == "" {
		m.Serves = m.Name
	}
	var known []string
	for _, p := range c.Pools {
		if p.Name != "" {
			known = append(known, p.Name)
		}
	}
	first := map[string]bool{}
	for i := range m.Pools {
		if m.Pools[i].Serves == "" {
			m.Pools[i].Serves = m.Serves
		}
		v, ok := d.seen[fmt.Sprintf("%s.pools[%d]", path, i)]
		if ok && v.kind == kindMap {
			d.required(v, "pool", "an entry of pools names one")
			v = d.seen[v.path+".pool"]
		}
		name := m.Pools[i].Pool
		if !ok || name == "" {
			continue
		}
		if first[name] {
			d.fail(v, "listed twice", "remove one of them")
		}
		first[name] = true
		if len(known) > 0 && len(known) == len(c.Pools) { // else some names could not be read, and nothing can be said
			d.knownPool(v, name, known)
		}
	}
}

// knownPool demands that a pool exists.
func (d *decoder) knownPool(v value, name string, known []string) {
	if slices.Contains(known, name) {
		return
	}
	hint := "there is " + clip(fmt.Sprintf("%v", known))
	if near := Closest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	d.fail(v, "there is no pool of that name", hint)
}

// checkLoops refuses an endpoint that is the gateway itself, and warns of one that is in two pools.
func (d *decoder) checkLoops(c *Config) {
	where := map[string]string{}
	for i := range c.Pools {
		for j := range d.items(d.seen[fmt.Sprintf("pools[%d].endpoints", i)]) {
			v := d.seen[fmt.Sprintf("pools[%d].endpoints[%d]", i, j)]
			u, rule, _ := parseEndpoint(v.text)
			if rule != "" {
				continue
			}
			for key, own := range ownAddresses(c) {
				if !d.failed(key) && reaches(u, own) {
					d.fail(v, "is the gateway itself, which listens on "+own, "name the model server's own port")
				}
			}
			if other, again := where[u]; again {
				d.warn(v, "is also in pool "+other+", so each pool sees the other's requests as foreign load", "keep an endpoint in one pool")
			}
			where[u] = c.Pools[i].Name
		}
	}
}

// ownAddresses are the addresses that the gateway listens on, by key.
func ownAddresses(c *Config) map[string]string {
	own := map[string]string{"listen": c.Listen, "admin": c.Admin}
	if c.Peers != nil {
		own["peers.listen"] = c.Peers.Listen
	}
	if c.ExtProc != nil {
		own["extproc.listen"] = c.ExtProc.Listen
	}
	return own
}

// reaches reports whether a URL certainly leads to a listening address of this machine.
func reaches(endpoint, listen string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port != u.Port() || port == "0" {
		return false
	}
	ip, _ := netip.ParseAddr(u.Hostname())
	local := ip.IsLoopback() || u.Hostname() == "localhost"
	if everyInterface(host) {
		return local
	}
	own, _ := netip.ParseAddr(host)
	return u.Hostname() == host || local && (own.IsLoopback() || host == "localhost") && (!ip.IsValid() || !own.IsValid() || ip == own)
}

// advise records what is allowed and probably not meant.
func (d *decoder) advise(c *Config) {
	if v, ok := d.seen["limit"]; ok && c.Limit < time.Minute {
		d.warn(v, "cuts every answer that takes longer, and long generations take minutes", "60m is the default")
	}
	if v, ok := d.seen["max_body"]; ok && c.MaxBody < 1<<20 {
		d.warn(v, "refuses long prompts and images", "64MiB is the default")
	}
	if v, ok := d.seen["cut_stream"]; ok && c.CutStream == CutErrorEvent {
		d.warn(v, "a client that does not look at error events takes a cut answer for a whole one", "both is the default")
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && c.DebugHeaders && !loopback(host) {
		d.warn(d.top("debug_headers"), "shows the addresses of endpoints to every client", "keep it for debugging")
	}
	for i := range c.Pools {
		d.advisePool(&c.Pools[i], fmt.Sprintf("pools[%d].full", i))
		d.adviseWaiting(c, &c.Pools[i], fmt.Sprintf("pools[%d]", i))
	}
	for i := range c.Models {
		path := fmt.Sprintf("models[%d]", i)
		_, pools := d.seen[path+".pools"]
		if v, ok := d.seen[path+".serves"]; ok && !pools && c.Models[i].Serves == c.Models[i].Name {
			d.warn(v, "is the model's own name, so the entry changes nothing", "remove the entry")
		}
	}
}

// advisePool looks at a pool's thresholds, which are at path.
func (d *decoder) advisePool(p *Pool, path string) {
	if v, ok := d.seen[path]; ok && p.Gates == GatesOff {
		d.warn(v, "has no effect with gates: off", "remove one of the two")
	}
	if v, ok := d.seen[path+".long_prompt"]; ok && p.Gates == GatesStrict {
		d.warn(v, "has no effect with gates: strict, which applies every rule to every prompt", "remove one of the two")
	}
	if v, ok := d.seen[path+".projected_kv"]; ok && p.Full.ProjectedKV < 0.5 {
		d.warn(v, "leaves more than half of the KV memory unused", "0.95 is the default")
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}
