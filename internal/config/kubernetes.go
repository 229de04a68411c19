package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// KubernetesAccess says how to reach the API server from outside a cluster.
type KubernetesAccess struct {
	// Kubeconfig (`kubernetes.kubeconfig`, required) is a kubeconfig file. A relative path is treated as that of Pool.File.
	Kubeconfig string

	// Context (`kubernetes.context`, default: the file's current one) is the context of that file.
	Context string
}

// KubernetesSource is where a pool's endpoints are in Kubernetes. Exactly one of InferencePool, Service, Selector and
// AIBrix is set.
type KubernetesSource struct {
	// InferencePool (`inference_pool`) is the name of an InferencePool, v1 or v1alpha2: its selector and its target ports say
	// the rest. Written namespace/name, it sets Namespace too.
	InferencePool string

	// Service (`service`) is the name of a Service whose EndpointSlices list the endpoints. Written as InferencePool.
	Service string

	// Selector (`selector`) is a label selector for pods, as kubectl takes it.
	Selector string

	// AIBrix (`aibrix`) is the model whose pods carry it as the label model.aibrix.ai/name.
	AIBrix string

	// Namespace (`namespace`, default: the gateway's own) is where to look.
	Namespace string

	// Port (`port`, default: the only one there is) is the name or the number of the port of the Service's pods.
	Port string

	// Ports (`ports`, default 8000) are the ports of each pod that Selector finds, and of those of an AIBrix model that have no
	// port label: an endpoint each.
	Ports []int

	// ReadArgs (`read_args`, default false) reads max_num_seqs, max_num_batched_tokens, the window and the caching flags from the
	// pods' arguments and environment, for what the model server does not say itself.
	ReadArgs bool
}

// maxPodPorts is how many data-parallel ranks of a pod can be told apart.
const maxPodPorts = 64

func accessFields(a *KubernetesAccess) []field {
	return []field{
		{"kubeconfig", func(d *decoder, v value) { d.path(v, &a.Kubeconfig) }},
		{"context", func(d *decoder, v value) { d.str(v, &a.Context) }},
	}
}

func kubernetesFields(k *KubernetesSource) []field {
	return []field{
		{"inference_pool", func(d *decoder, v value) { d.objectName(v, &k.InferencePool, &k.Namespace) }},
		{"service", func(d *decoder, v value) { d.objectName(v, &k.Service, &k.Namespace) }},
		{"selector", func(d *decoder, v value) { d.selector(v, &k.Selector) }},
		{"aibrix", func(d *decoder, v value) {
			var name string
			if d.str(v, &name) && d.matches(v, labelValue, "want a model's name as the label model.aibrix.ai/name has it", "like llama-3-8b-instruct") {
				k.AIBrix = name
			}
		}},
		{"namespace", func(d *decoder, v value) { d.namespace(v, &k.Namespace) }},
		{"port", func(d *decoder, v value) { d.servicePort(v, &k.Port) }},
		{"ports", func(d *decoder, v value) { d.podPorts(v, &k.Ports) }},
		{"read_args", func(d *decoder, v value) { d.boolean(v, &k.ReadArgs) }},
	}
}

// What Kubernetes takes for names. A selector's words are these too.
const (
	labelValue = `[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?`
	labelKey   = `([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?` + labelValue
	dnsLabel   = `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`
	dnsName    = `[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?`
)

// matches demands that a text is as a whole what a pattern says.
func (d *decoder) matches(v value, pattern, rule, hint string) bool {
	if whole(pattern, v.text) {
		return true
	}
	d.fail(v, rule, hint)
	return false
}

func whole(pattern, text string) bool {
	return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(text)
}

// objectName stores the name of an object, and its namespace if it is written namespace/name.
func (d *decoder) objectName(v value, name, namespace *string) {
	var text string
	if !d.str(v, &text) {
		return
	}
	in, of, both := strings.Cut(text, "/")
	if !both {
		in, of = "", text
	}
	if both && !whole(dnsLabel, in) || !whole(dnsName, of) {
		d.fail(v, "want a name or namespace/name, in lower case letters, digits, '-' and '.'", "like chat or models/chat")
		return
	}
	*name = of
	if both {
		d.setNamespace(v, in, namespace)
	}
}

func (d *decoder) namespace(v value, dst *string) {
	var text string
	if d.str(v, &text) && d.matches(v, dnsLabel, "a namespace has lower case letters, digits and '-'", "like models; without the key it is the gateway's own") {
		d.setNamespace(v, text, dst)
	}
}

// setNamespace takes a namespace that may stand there already.
func (d *decoder) setNamespace(v value, namespace string, dst *string) {
	if *dst != "" && *dst != namespace {
		d.fail(v, "the namespace is "+*dst+" already", "write it once")
		return
	}
	*dst = namespace
}

// servicePort stores a port's number or name.
func (d *decoder) servicePort(v value, dst *string) {
	const rule, hint = "want the name or the number of a port", "like 8000 or http"
	switch {
	case v.kind == kindInt && portRule(v.text, 1) == "":
		*dst = strings.TrimLeft(v.text, "0")
	case v.kind == kindText && whole(`[a-z0-9-]{1,63}`, v.text) && strings.ContainsAny(v.text, "abcdefghijklmnopqrstuvwxyz"):
		*dst = v.text
	case v.kind == kindText && portRule(v.text, 1) == "":
		*dst = strings.TrimLeft(v.text, "0") // in quotes
	default:
		d.fail(v, rule, hint)
	}
}

func (d *decoder) podPorts(v value, dst *[]int) {
	for _, item := range d.list(v, "ports", maxPodPorts) {
		var port int
		before := len(d.errs)
		d.integer(item, &port, 1, 65535)
		switch {
		case len(d.errs) > before:
		case slices.Contains(*dst, port):
			d.fail(item, "listed twice", "remove one of them")
		default:
			*dst = append(*dst, port)
		}
	}
}

// selector stores a label selector: requirements that all must hold, with commas between them.
func (d *decoder) selector(v value, dst *string) {
	var text string
	if !d.str(v, &text) {
		return
	}
	const list = `\s*\(\s*` + labelValue + `(?:\s*,\s*` + labelValue + `)*\s*\)`
	const one = `\s*(?:!?` + labelKey + `|` + labelKey + `\s*(?:==?|!=)\s*(?:` + labelValue + `)?|` + labelKey + `\s+(?:in|notin)` + list + `)\s*`
	if d.matches(v, one+`(?:,`+one+`)*`, "want a label selector", "like app=vllm or app=vllm,tier!=test or app in (vllm,sglang)") {
		*dst = text
	}
}

// checkKubernetes demands one source in each pool's `kubernetes`, and keys that belong to it.
func (d *decoder) checkKubernetes(c *Config) {
	used := false
	for i := range c.Pools {
		path := fmt.Sprintf("pools[%d].kubernetes", i)
		v, ok := d.seen[path]
		if !ok || v.kind != kindMap {
			continue
		}
		used = true
		d.checkKubernetesSource(v)
	}
	top, ok := d.seen["kubernetes"]
	if !ok || top.kind != kindMap {
		return
	}
	d.required(top, "kubeconfig", "from inside a cluster the key kubernetes is not needed, from outside this one is")
	if !used {
		d.warn(top, "no pool asks Kubernetes", "add pools[].kubernetes, or remove the key")
	}
}

func (d *decoder) checkKubernetesSource(v value) {
	sources := []string{"inference_pool", "service", "selector", "aibrix"}
	var first string
	for _, key := range sources {
		at, ok := d.seen[v.path+"."+key]
		switch {
		case !ok:
		case first == "":
			first = key
		default:
			d.failShowing(at, "", "stands beside "+first+", and a pool has one source of endpoints", "keep one of "+strings.Join(sources, ", "))
			return
		}
	}
	if _, misspelt := d.seen[v.path+"."+unknown]; first == "" && !misspelt {
		d.failShowing(v, "", "does not say where the endpoints are", "add one of inference_pool: chat, service: vllm, selector: app=vllm, aibrix: llama-3-8b")
	}
	if at, ok := d.seen[v.path+".port"]; ok && first != "" && first != "service" {
		d.fail(at, "belongs to service", map[string]string{"inference_pool": "remove it: the InferencePool says its ports"}[first]+
			map[string]string{"selector": "write ports: [" + clip(at.text) + "]", "aibrix": "write ports: [" + clip(at.text) + "]"}[first])
	}
	if at, ok := d.seen[v.path+".ports"]; ok && (first == "service" || first == "inference_pool") {
		d.failShowing(at, "", "belongs to selector and aibrix", map[string]string{"service": "name one with port", "inference_pool": "remove it: the InferencePool says its ports"}[first])
	}
}

// write appends the source as it is in the file.
func (k *KubernetesSource) write(b *strings.Builder) {
	var parts []string
	add := func(key, text string) {
		if text != "" {
			parts = append(parts, key+": "+scalar(text))
		}
	}
	add("inference_pool", k.InferencePool)
	add("service", k.Service)
	add("selector", k.Selector)
	add("aibrix", k.AIBrix)
	add("namespace", k.Namespace)
	add("port", k.Port)
	if len(k.Ports) > 0 {
		ports := make([]string, len(k.Ports))
		for i, p := range k.Ports {
			ports[i] = strconv.Itoa(p)
		}
		parts = append(parts, "ports: ["+strings.Join(ports, ", ")+"]")
	}
	fmt.Fprintf(b, "    kubernetes: {%s, read_args: %t}\n", strings.Join(parts, ", "), k.ReadArgs)
}
