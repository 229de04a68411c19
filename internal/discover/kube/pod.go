package kube

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"pointsman.dev/pointsman/internal/discover"
)

const (
	aibrixName = "model.aibrix.ai/name"
	aibrixPort = "model.aibrix.ai/port"
	// aibrixMetrics is a label with the port of the metrics page, where that is not the port of the API.
	aibrixMetrics = "model.aibrix.ai/metric-port"
	// aibrixGroup numbers the pods that serve one model together; the first one listens.
	aibrixGroup = "stormservice.orchestration.aibrix.ai/pod-group-index"
	// aibrixDraining is an annotation that AIBrix's controllers set some time before they delete a pod.
	aibrixDraining = "aibrix.ai/draining"

	defaultPort = 8000 // of vLLM
)

// activePorts are annotations with the ports of a pod's data-parallel ranks that serve at the moment; the first that is
// there counts.
func activePorts() []string {
	return []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}
}

// pod is what endpoints are made of. It never changes.
type pod struct {
	uid      string
	labels   map[string]string
	addr     netip.Addr
	born     time.Time
	ready    bool // Ready, with an address, and nobody asked it to end
	draining bool // AIBrix asked it to
	active   []int
	narrowed bool                      // active says which ports serve; false is all
	settings map[int]discover.Settings // by port; 0 is every other one
}

// reducePod takes pods without an address as well: they are why a pool has no endpoints.
func reducePod(p *corev1.Pod) any {
	addr, err := netip.ParseAddr(p.Status.PodIP)
	r := &pod{uid: string(p.UID), labels: p.Labels, addr: addr.Unmap(), born: p.CreationTimestamp.Time, ready: err == nil && ready(p),
		draining: p.Annotations[aibrixDraining] == "true", settings: settingsOf(p)}
	for _, name := range activePorts() {
		if list, ok := p.Annotations[name]; ok {
			r.active, r.narrowed = portList(list), true
			break
		}
	}
	return r
}

// ready follows Kubernetes: a pod serves from Ready until somebody asks it to end, whatever its own state is then. The
// address of a pod that is over may be another one's by now.
func ready(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// portList reads "8000,8001"; what is no port is left out.
func portList(text string) []int {
	var ports []int
	for field := range strings.SplitSeq(text, ",") {
		if n, err := strconv.Atoi(strings.TrimSpace(field)); err == nil && n > 0 && n < 1<<16 {
			ports = append(ports, n)
		}
	}
	return ports
}

// at returns how the model server at a port was started.
func (p *pod) at(port int) discover.Settings {
	if s, ok := p.settings[port]; ok {
		return s
	}
	return p.settings[0]
}

// endpoints returns the pod's endpoints at some ports.
func (p *pod) endpoints(ports []int) []endpoint {
	var list []endpoint
	for _, port := range ports {
		if p.narrowed && !slices.Contains(p.active, port) {
			continue
		}
		list = append(list, endpoint{addr: netip.AddrPortFrom(p.addr, uint16(port)), id: p.uid, born: p.born, settings: p.at(port)})
	}
	return list
}

// selected returns the endpoints of pods.
func selected(list []*pod, ports []int) []endpoint {
	var found []endpoint
	for _, p := range list {
		if p.ready {
			found = append(found, p.endpoints(ports)...)
		}
	}
	return found
}

// aibrix returns the endpoints of the pods of an AIBrix model.
func aibrix(list []*pod, ports []int) []endpoint {
	var found []endpoint
	for _, p := range list {
		if !p.ready || p.draining {
			continue
		}
		if index, grouped := p.labels[aibrixGroup]; grouped && index != "0" {
			continue
		}
		own := portList(p.labels[aibrixPort])
		if len(own) == 0 {
			own = ports
		}
		list := p.endpoints(own)
		if at := portList(p.labels[aibrixMetrics]); len(at) == 1 && !slices.Contains(own, at[0]) {
			for i := range list {
				list[i].metrics = at[0]
			}
		}
		found = append(found, list...)
	}
	return found
}
