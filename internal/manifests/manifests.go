// Package manifests writes Kubernetes manifests for the user's own labels, where a file to copy and edit would be got wrong:
// the network policies around model servers and around the gateway.
//
// It does not talk to a cluster and knows nothing of Kubernetes beyond these objects; what it writes goes to `kubectl apply`.
package manifests

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/config"
)

// Labels select pods that have all of them. Empty selects every pod.
type Labels map[string]string

// Peer is pods of one namespace that may connect. Labels empty: every pod of the namespace.
type Peer struct {
	Namespace string // "" is the namespace of the policy itself
	Pods      Labels
}

// ModelPolicy is a NetworkPolicy for the pods of model servers.
type ModelPolicy struct {
	Name      string // "" is pointsman-model-servers
	Namespace string // of the model servers
	Pods      Labels // of the model servers, not empty: a policy for every pod of a namespace is not meant
	Ports     []int  // of the model servers, 1 to 65535, at least one
	From      []Peer // who may connect: the gateway, Prometheus
}

// YAML returns the policy: what it does not name can no longer connect to the pods, on any port. Probes of the kubelet
// are no pods and pass.
func (p ModelPolicy) YAML() string {
	var w writer
	w.head(p.Namespace, cmp.Or(p.Name, "pointsman-model-servers"))
	w.pods(1, "podSelector", p.Pods)
	w.line(1, "policyTypes:")
	w.line(2, "- Ingress")
	w.line(1, "ingress:")
	w.rule(p.From, p.Ports)
	return w.String()
}

// GatewayPolicy is a NetworkPolicy for the pods of the gateway.
type GatewayPolicy struct {
	Namespace string
	Pods      Labels // of the gateway, not empty
	API       int    // port that every pod of the cluster, and what comes from outside, may connect to
	Admin     int    // port that only Monitors may connect to
	Monitors  []Peer
	Peers     int    // port that only the gateway's own pods may connect to; 0: none
	ExtProc   int    // port that only Proxies may connect to; 0: none
	Proxies   []Peer // Envoy
}

// YAML returns the policy. It limits who connects to the gateway, not whom the gateway connects to.
func (p GatewayPolicy) YAML() string {
	var w writer
	w.head(p.Namespace, "pointsman")
	w.pods(1, "podSelector", p.Pods)
	w.line(1, "policyTypes:")
	w.line(2, "- Ingress")
	w.line(1, "ingress:")
	if p.API > 0 {
		w.rule(nil, []int{p.API})
	}
	if len(p.Monitors) > 0 {
		w.rule(p.Monitors, []int{p.Admin})
	}
	if p.Peers > 0 {
		w.rule([]Peer{{Pods: p.Pods}}, []int{p.Peers})
	}
	if p.ExtProc > 0 {
		w.rule(p.Proxies, []int{p.ExtProc})
	}
	return w.String()
}

// writer writes YAML in block style; depth is in steps of two blanks.
type writer struct{ strings.Builder }

func (w *writer) line(depth int, format string, args ...any) {
	w.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(w, format, args...)
	w.WriteByte('\n')
}

func (w *writer) head(namespace, name string) {
	w.line(0, "apiVersion: networking.k8s.io/v1")
	w.line(0, "kind: NetworkPolicy")
	w.line(0, "metadata:")
	w.line(1, "name: %s", name)
	w.line(1, "namespace: %s", config.Scalar(namespace))
	w.line(1, "labels:")
	w.line(2, "app.kubernetes.io/name: pointsman")
	w.line(0, "spec:")
}

// pods writes a label selector under a key.
func (w *writer) pods(depth int, key string, labels Labels) {
	if len(labels) == 0 {
		w.line(depth, "%s: {}", key)
		return
	}
	w.line(depth, "%s:", key)
	if strings.HasPrefix(key, "- ") {
		depth++ // the dash takes a step
	}
	w.line(depth+1, "matchLabels:")
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		w.line(depth+2, "%s: %s", config.Scalar(name), config.Scalar(labels[name]))
	}
}

// rule writes one ingress rule; from empty is everybody.
func (w *writer) rule(from []Peer, ports []int) {
	w.line(2, "- ports:")
	for _, port := range ports {
		w.line(4, "- port: %d", port)
		w.line(5, "protocol: TCP")
	}
	if len(from) == 0 {
		return
	}
	w.line(3, "from:")
	for _, p := range from {
		if p.Namespace == "" {
			w.pods(4, "- podSelector", p.Pods)
			continue
		}
		// One element with both: the pods of that namespace. Two elements would be either.
		w.line(4, "- namespaceSelector:")
		w.line(6, "matchLabels:")
		w.line(7, "kubernetes.io/metadata.name: %s", config.Scalar(p.Namespace))
		if len(p.Pods) > 0 {
			w.pods(5, "podSelector", p.Pods)
		}
	}
}
