package importer

import (
	"slices"
	"strings"
)

// Kubernetes objects: InferencePools, AIBrix's gateway and models, and the pods whose arguments are those of a router.

// object reads one object; what routing does not depend on is listed once, by its kind.
func (im *importer) object(doc *node) {
	defer doc.use()
	switch kind := doc.get("kind").str(); kind {
	case "List":
		for _, item := range doc.get("items").list() {
			im.document(item)
		}
	case "InferencePool":
		im.inferencePool(doc)
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet":
		im.workload(doc, doc.get("spec", "template", "metadata"), doc.get("spec", "template", "spec"))
	case "Pod":
		im.workload(doc, doc.get("metadata"), doc.get("spec"))
	case "ConfigMap":
		data := doc.get("data")
		for _, k := range data.pairs() {
			im.embedded(k.val)
		}
	default:
		im.note(doc.get("kind"), ByItself, "nothing of a "+printable(kind)+" decides where requests go")
	}
}

// embedded reads a file that stands in a ConfigMap or an argument, when it is one that is known. Lines are those of the outer
// file as far as block style keeps them.
func (im *importer) embedded(text *node) {
	inner := &importer{}
	docs := inner.parse(File{Name: text.file, Data: []byte(text.str())})
	if len(inner.errs) > 0 {
		return // not YAML: a file of another program
	}
	for _, doc := range docs {
		if doc.kind != kindMap || !isPickerConfig(doc) && !isEndpointsFile(doc) && doc.peek("model_list") == nil {
			continue
		}
		doc.shift(text.line, text.path+": ")
		im.document(doc)
	}
}

// shift moves a tree to where it stands in an outer file.
func (n *node) shift(lines int, path string) {
	n.line += lines
	n.path = path + n.path
	for _, k := range n.keys {
		k.val.shift(lines, path)
	}
	for _, item := range n.items {
		item.shift(lines, path)
	}
}

// inferencePool makes a pool of an InferencePool: Pointsman reads the object itself, ports and selector included.
func (im *importer) inferencePool(doc *node) {
	name := doc.get("metadata", "name")
	if name.str() == "" {
		im.fail(doc, "", "an InferencePool without a name", "write metadata.name")
		return
	}
	p := im.plan.newPool(name.str())
	p.kube = kubeSource{inferencePool: name.str(), namespace: doc.get("metadata", "namespace").str()}
	if mode := doc.get("spec", "endpointPickerRef", "failureMode"); mode != nil {
		im.note(mode, ByItself, "it stays in the InferencePool: the gateway in front obeys it")
	}
	im.plan.extProc = first(im.plan.extProc, "0.0.0.0:9002")
}

// workload reads pods: a model of AIBrix, its gateway, or a router.
func (im *importer) workload(doc, meta, spec *node) {
	before := len(im.plan.pools) + len(im.notes) + len(im.errs)
	labels := meta.get("labels")
	modelName := first(labels.peek("model.aibrix.ai/name"), doc.get("metadata", "labels").peek("model.aibrix.ai/name"))
	for _, c := range spec.get("containers").list() {
		words := argv(c)
		switch {
		case modelName.str() != "":
			im.aibrixModel(doc, modelName, words)
			modelName = nil
		case isRouter(words):
			im.flags(words)
		case slices.ContainsFunc(words, func(w *node) bool {
			return strings.HasPrefix(w.str(), "--pool-name") || strings.HasPrefix(w.str(), "--poolName")
		}):
			im.picker(doc, words)
		default:
			im.aibrixEnv(c.get("env"))
		}
	}
	if before == len(im.plan.pools)+len(im.notes)+len(im.errs) {
		im.note(doc.get("kind"), ByItself, "nothing of this "+doc.get("kind").str()+" decides where requests go")
	}
}

// argv returns the words of a container's command line; what `sh -c` runs is taken apart.
func argv(c *node) []*node {
	words := append(c.get("command").list(), c.get("args").list()...)
	for i, w := range words {
		flag := w.str()
		if i > 0 && i+1 < len(words) && strings.HasSuffix(words[0].str(), "sh") && strings.HasPrefix(flag, "-") && strings.HasSuffix(flag, "c") {
			script := *words[i+1]
			if strings.Contains(script.text, "\n") {
				script.line++ // in block style, of which the lines are known, it begins below its key
			}
			return slices.Concat(words[:i+1], shellWords(words[i+1].str(), script))
		}
	}
	return words
}

// aibrixModel makes a pool of a model's pods.
func (im *importer) aibrixModel(doc, name *node, args []*node) {
	p := im.plan.newPool(name.str())
	p.kube = kubeSource{aibrix: name.str(), namespace: doc.get("metadata", "namespace").str()}
	for i, w := range args {
		value, ok := strings.CutPrefix(w.str(), "--max-num-seqs=")
		if w.str() == "--max-num-seqs" && i+1 < len(args) {
			value, ok = args[i+1].str(), true
		}
		if ok {
			n := &node{file: w.file, line: w.line, col: w.col, path: w.path, kind: kindNumber, text: value}
			p.seqs, _ = im.whole(n, 1, 100_000)
		}
	}
}

// aibrixEnv reads the environment of AIBrix's gateway plugins.
func (im *importer) aibrixEnv(env *node) {
	for _, e := range env.list() {
		name, value := e.get("name").str(), e.get("value")
		e.path += " (" + printable(name) + ")"
		if name == "ROUTING_ALGORITHM" {
			im.aibrixAlgorithm(e, value.str())
			continue
		}
		if !strings.HasPrefix(name, "AIBRIX_") && !strings.HasPrefix(name, "REDIS_") {
			continue
		}
		switch {
		case strings.HasPrefix(name, "REDIS_"):
			im.note(e, ByItself, "there is no Redis: replicas tell each other their picks, see docs/replicas.md")
		case strings.HasPrefix(name, "AIBRIX_PREFIX_CACHE_"):
			im.note(e, ByItself, "block size, capacity and load are those of the model servers; there is no threshold between prefix and load")
		case strings.Contains(name, "METRIC_REFRESH"):
			im.note(e, ByItself, "model servers' pages are read every 200 ms")
		case strings.Contains(name, "VTC"):
			im.note(e, NoCounterpart, "there is no fairness between users")
		case strings.Contains(name, "PREFILL") || strings.Contains(name, "_PD_"):
			im.note(e, NoCounterpart, "prefill and decode on separate model servers is not supported")
		case strings.Contains(name, "TOKENIZER") || strings.Contains(name, "KV_EVENT"):
			im.note(e, ByItself, "prefixes are hashes of the prompt's bytes: no tokenizer, no events")
		default:
			im.note(e, Unknown, "")
		}
	}
}

// aibrixAlgorithm reads the routing strategy.
func (im *importer) aibrixAlgorithm(e *node, value string) {
	switch {
	case strings.HasPrefix(value, "prefix-cache"):
		im.note(e, ByItself, "prefixes count where the model servers cache them")
	case slices.Contains([]string{"random", "least-request", "least-busy-time", "least-latency", "least-kv-cache", "least-gpu-cache", "least-utilization",
		"throughput", "power-of-two", "load-balance"}, value):
		im.plan.every.policy = "least_request"
		im.note(e, Todo, "hence policy: least_request; without that line prefixes count where the model servers cache them")
	case value == "session-affinity":
		im.note(e, ByItself, "a conversation stays where its prefix is; it is not bound to that endpoint")
	case value == "pd":
		im.note(e, NoCounterpart, "prefill and decode on separate model servers is not supported")
	case strings.HasPrefix(value, "slo") || strings.HasPrefix(value, "vtc"):
		im.note(e, NoCounterpart, "picks minimise expected seconds; there are no objectives per request and no fairness between users")
	default:
		im.note(e, Unknown, "")
	}
}

// picker reads the arguments of llm-d's endpoint picker.
func (im *importer) picker(doc *node, words []*node) {
	args := flagsOf(words)
	name := first(args.get("pool-name"), args.get("poolName"))
	namespace := first(args.get("pool-namespace").one(), args.get("poolNamespace").one(), doc.get("metadata", "namespace").str())
	if name.one() != "" && !slices.ContainsFunc(im.plan.pools, func(p *pool) bool { return p.kube.inferencePool == name.one() }) {
		p := im.plan.newPool(name.one())
		p.kube = kubeSource{inferencePool: name.one(), namespace: namespace}
	}
	if port := first(args.get("grpc-port").one(), args.get("grpcPort").one()); isPort(port) {
		im.plan.extProc = "0.0.0.0:" + port
	}
	if text := args.get("config-text"); text != nil && len(text.values) > 0 {
		im.embedded(text.values[0])
	}
}
