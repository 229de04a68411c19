package importer

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// llm-d: the configuration of its endpoint picker, which was the Gateway API Inference Extension's, its endpoints files, and
// the InferencePool that it serves.

func isPickerConfig(n *node) bool {
	return n.peek("kind").str() == "EndpointPickerConfig" || n.peek("schedulingProfiles") != nil && n.peek("plugins") != nil
}

func isEndpointsFile(n *node) bool {
	list := n.peek("endpoints")
	return list != nil && list.kind == kindList && slices.ContainsFunc(list.items, func(e *node) bool { return e.peek("address") != nil })
}

func pickerVersions() []string {
	return []string{"llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"}
}

// pickerConfig reads an EndpointPickerConfig.
func (im *importer) pickerConfig(doc *node) {
	doc.get("kind")
	if v := doc.get("apiVersion"); v != nil && !slices.Contains(pickerVersions(), v.str()) {
		im.fail(v, "", "no version that is known", "known are "+strings.Join(pickerVersions(), ", "))
	}
	im.plan.extProc = first(im.plan.extProc, "0.0.0.0:9002") // it is Envoy that asks
	prefix := false
	for _, p := range doc.get("plugins").list() {
		p.use()
		typ := p.get("type")
		if typ.str() == "" {
			im.fail(p, "", "a plugin without a type", "write type: queue-scorer, for one")
			continue
		}
		prefix = prefix || strings.Contains(typ.str(), "prefix-cache")
		im.plugin(p, typ)
	}
	if !prefix && doc.peek("plugins") != nil {
		im.plan.every.policy = "least_request"
		im.note(doc.get("plugins"), Todo, "no plugin scores prefixes, hence policy: least_request; without that line prefixes count where the model servers cache them")
	}
	im.note(doc.get("schedulingProfiles"), ByItself, "a pick is the lowest cost in seconds; there are no weights to set")
	im.saturation(doc.get("saturationDetector"))
	flow := doc.get("flowControl")
	for _, g := range doc.get("featureGates").list() {
		g.use()
		if strings.HasPrefix(g.str(), "flowControl") && !strings.HasSuffix(g.str(), "=false") && im.plan.every.queueMax == 0 {
			im.plan.every.queueMax = 1000
			im.note(g, Todo, "requests wait while every endpoint is full; queue.max: 1000 is a guess, since llm-d bounds bytes")
		}
	}
	im.flow(flow)
	im.note(doc.peek("dataLayer"), ByItself, "model servers' pages are read every 200 ms, and their names are known")
	im.note(doc.peek("data"), ByItself, "model servers' pages are read every 200 ms, and their names are known")
	im.note(doc.peek("requestHandler"), ByItself, "OpenAI and Anthropic requests are known by their path")
	im.note(doc.peek("parser"), ByItself, "OpenAI and Anthropic requests are known by their path")
}

// flow reads the flow control of an EndpointPickerConfig.
func (im *importer) flow(flow *node) {
	if flow == nil {
		return
	}
	im.saturation(flow.get("saturationDetector"))
	if n, ok := im.whole(flow.get("maxRequests"), 1, 100_000); ok {
		im.plan.every.queueMax = n
	}
	if ttl := flow.get("defaultRequestTTL"); ttl != nil {
		d, err := time.ParseDuration(ttl.str())
		if err != nil || d <= 0 || d > 168*time.Hour {
			im.fail(ttl, "", "want a duration", "like 60s")
		}
		im.plan.every.queueWait = d
	}
	for _, key := range []string{"maxBytes", "priorityBands", "defaultPriorityBand", "usageLimitPolicyPluginRef", "fairnessPolicy", "orderingPolicy"} {
		im.note(flow.peek(key), NoCounterpart, "the queue is bounded by requests; first come, first served within a priority")
	}
}

// saturation reads thresholds, wherever they stand.
func (im *importer) saturation(n *node) {
	if n == nil {
		return
	}
	if v, ok := im.whole(n.get("queueDepthThreshold"), 1, 10_000); ok {
		im.plan.every.waiting = v
	}
	if v, ok := im.whole(n.get("maxConcurrency"), 1, 100_000); ok {
		im.plan.every.seqs = v
	}
	if kv := n.get("kvCacheUtilThreshold"); kv != nil {
		if v, err := strconv.ParseFloat(kv.str(), 64); err != nil || !(v > 0 && v <= 1) {
			im.fail(kv, "", "want a share above 0 and up to 1", "like 0.8")
		} else {
			im.plan.every.kv = strconv.FormatFloat(v, 'f', -1, 64)
			im.note(kv, ByItself, "it holds for KV memory as it will be with the request, not as reported: a little lower than llm-d's")
		}
	}
	im.note(n.peek("metricsStalenessThreshold"), ByItself, "an endpoint without a fresh report counts as average")
	im.note(n.peek("pluginRef"), ByItself, "the thresholds of that plugin were taken")
	im.note(n.peek("headroom"), NoCounterpart, "an endpoint is full or not")
}

// plugin says what becomes of one plugin.
func (im *importer) plugin(p, typ *node) {
	kind := typ.str()
	params := p.get("parameters")
	at := &node{file: p.file, line: p.line, col: p.col, path: p.path + " (" + printable(kind) + ")"}
	switch kind {
	case "file-discovery":
		im.watched = at
		return
	case "utilization-detector", "concurrency-detector":
		im.saturation(params)
		return
	}
	for _, f := range pluginFates() {
		if slices.ContainsFunc(f.words, func(w string) bool { return strings.Contains(kind, w) }) {
			im.note(at, f.fate, f.why)
			return
		}
	}
	im.note(at, Unknown, "")
}

// pluginFates says what becomes of plugins by what is in their type; the first that fits holds.
func pluginFates() []struct {
	words []string
	fate  Fate
	why   string
} {
	return []struct {
		words []string
		fate  Fate
		why   string
	}{
		{[]string{"prefix-cache", "token-producer", "tokenizer"}, ByItself, "held prefixes are known from what was sent and from the model servers' reports; block size and capacity are the servers' own"},
		{[]string{"lora"}, NoCounterpart, "a request goes to endpoints that list its adapter; which of them has it loaded is not looked at"},
		{[]string{"session"}, ByItself, "a conversation stays where its prefix is; it is not bound to that endpoint"},
		{[]string{"context-length"}, Todo, "give each window a pool of its own and list them in models[].pools, see docs/pools.md"},
		{[]string{"prefill", "decode", "pd-", "disagg"}, NoCounterpart, "prefill and decode on separate model servers is not supported"},
		{[]string{"by-label", "label-filter", "label-selector"}, Todo, "endpoints that differ are pools of their own: select them there"},
		{[]string{"slo", "predict"}, NoCounterpart, "picks minimise expected seconds; there are no objectives per request"},
		{[]string{"queue-scorer", "kv-cache-utilization", "load-aware", "active-request", "running-requests", "token-load", "no-hit-lru", "latency-scorer", "low-queue",
			"least-queue", "least-kv-cache"}, ByItself, "load is part of every pick's cost"},
		{[]string{"-picker", "single-profile-handler"}, ByItself, "the lowest cost is picked, at random among equals"},
		{[]string{"-source", "-extractor", "-parser"}, ByItself, "model servers' pages and requests are read without a setting"},
	}
}

// endpointsFile reads the file that a file-discovery plugin watches.
func (im *importer) endpointsFile(doc *node) {
	for _, e := range doc.get("endpoints").list() {
		e.used = true
		address, port := e.get("address"), e.get("port")
		e.get("name").use()
		e.get("namespace").use()
		im.note(e.peek("labels"), NoCounterpart, "an endpoint is its address; those that differ are pools of their own")
		switch {
		case net.ParseIP(address.str()) == nil:
			im.fail(first(address, e), "", "want an IP address", "write address: \"10.0.0.3\"")
			continue
		case !isPort(port.str()):
			im.fail(first(port, e), "", "want a port, 1 to 65535", "write port: \"8000\"")
			continue
		}
		u := "http://" + net.JoinHostPort(address.str(), port.str())
		if slices.Contains(im.listed, u) {
			im.note(e, ByItself, "the same endpoint as one before")
			continue
		}
		im.listed = append(im.listed, u)
	}
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= 65535 && s == strconv.Itoa(n)
}

// printable is a text of a file that an error or the list may show: short, one line, and no secret by what it is.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "..."
	}
	return s
}
