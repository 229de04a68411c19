package importer

import (
	"strings"
)

// vLLM production-stack: the values of its Helm chart, and the file that its router reads while running.

// stackValues reads Helm values.
func (im *importer) stackValues(doc *node) {
	engine, router := doc.get("servingEngineSpec"), doc.get("routerSpec")
	port := first(engine.get("containerPort").str(), "8000")
	var labels []string
	for _, k := range engine.get("labels").pairs() {
		labels = append(labels, k.name+"="+k.val.str())
	}
	if len(labels) == 0 {
		labels = []string{"environment=test", "release=test"} // the chart's own
	}
	static := router.peek("serviceDiscovery").str() == "static"
	for _, m := range engine.get("modelSpec").list() {
		m.used = true
		if m.get("enabled").str() == "false" || static {
			m.use()
			continue
		}
		im.stackModel(m, labels, port)
	}
	if key := engine.peek("vllmApiKey"); key.str() != "" || key.peek("secretName").str() != "" {
		im.plan.every.needsKey = true
		im.note(key, Todo, "mount the secret and name its file in api_key_file")
	}
	engine.use() // how the model servers themselves run is not the gateway's
	if router != nil {
		im.stackRouter(router)
	}
	for _, k := range doc.keys {
		if !k.val.used {
			im.note(k.val, NoCounterpart, "nothing beside engines and router is the gateway's")
		}
	}
}

// stackModel makes a pool of one model's pods.
func (im *importer) stackModel(m *node, labels []string, port string) {
	name := m.get("name").str()
	if name == "" {
		im.fail(m, "", "a model without a name", "write name")
		return
	}
	p := im.plan.newPool(name)
	p.kube = kubeSource{selector: strings.Join(append([]string{"model=" + name}, labels...), ","), ports: []string{port}}
	if n, ok := im.whole(m.get("vllmConfig", "maxNumSeqs"), 1, 100_000); ok {
		p.seqs = n
	}
	if ray := m.peek("raySpec"); ray != nil && ray.get("enabled").str() != "false" {
		im.note(ray, Todo, "the pods of a Ray cluster have other labels: correct the selector of pool "+p.name)
	}
	m.use()
}

// stackRouter turns the values of the router into the flags that the chart makes of them.
func (im *importer) stackRouter(r *node) {
	var words []*node
	add := func(key, flag string) {
		if v := r.get(key); v.str() != "" {
			words = append(words, &node{file: v.file, line: v.line, col: v.col, path: v.path, text: "--" + flag, kind: kindText}, v)
		}
	}
	add("routingLogic", "routing-logic")
	add("sessionKey", "session-key")
	add("staticBackends", "static-backends")
	add("staticModels", "static-models")
	add("engineScrapeInterval", "engine-stats-interval")
	add("requestStatsWindow", "request-stats-window")
	add("lmcacheControllerPort", "lmcache-controller-port")
	words = append(words, r.get("extraArgs").list()...)
	if len(words) > 0 {
		im.flags(words)
	}
	im.plan.listen = "" // the chart's port is inside the pod
	if ingress := r.peek("ingress"); ingress.peek("enabled").str() == "true" {
		im.note(ingress, NoCounterpart, "an Ingress of your own leads to the Service pointsman; its time limits have to allow the longest answer, see docs/time-limit.md")
	}
	r.use() // how the router's own pods run is the chart's, see docs/deploy.md
}

// stackDynamic reads the router's dynamic configuration: flags with underscores, or models with their backends.
func (im *importer) stackDynamic(doc *node) {
	var words []*node
	for _, k := range doc.keys {
		if k.name == "static_models" && k.val.kind == kindMap {
			im.stackModels(k.val)
			continue
		}
		if k.name == "static_aliases" && k.val.kind == kindMap {
			for _, a := range k.val.keys {
				im.plan.newModel(a.name).pools = []modelPool{{"", a.val.str()}}
			}
			k.val.use()
			continue
		}
		words = append(words, &node{file: k.val.file, line: k.val.line, col: k.val.col, path: k.val.path, kind: kindText, text: "--" + k.name})
		words = append(words, k.val.list()...)
		if k.val.kind == kindNumber || k.val.kind == kindBool {
			words = append(words, k.val)
		}
	}
	doc.use()
	im.flags(words)
	im.plan.listen = ""
}

// stackModels reads models with their backends.
func (im *importer) stackModels(models *node) {
	for i, k := range models.keys {
		urls := k.val.get("static_backends").list()
		if len(urls) == 0 {
			im.fail(models.keys[i].val, "", "a model without static_backends", "list its URLs")
			continue
		}
		im.static(&flagValue{name: "static_backends", at: k.val, values: urls}, repeat(k.name, urls))
		im.note(k.val.peek("static_model_type"), ByItself, "what a model does is known by the path of a request")
	}
}

// repeat names a model as often as it has backends.
func repeat(name string, urls []*node) []*node {
	var names []*node
	for range urls {
		names = append(names, &node{kind: kindText, text: name})
	}
	return names
}
