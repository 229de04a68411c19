package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"pointsman.dev/pointsman/internal/discover"
)

// endpoint is one address on its way to a discover.Target.
type endpoint struct {
	addr     netip.AddrPort
	id       string
	metrics  int // port of the metrics page, 0: the same
	born     time.Time
	settings discover.Settings
}

// viewed is a mirror that a view looks at.
type viewed struct {
	*mirror
	required bool
}

// view is what one running discoverer sees of the mirrors.
type view struct {
	source    Source
	namespace string
	mirrors   []viewed
	pool      *inferencePool // the last good one
	protocol  string         // what the source says that the ports speak
}

// targets returns the endpoints of this moment, nil when nothing can be said. An error beside a set means that it is
// made of what was known before. errNotYet means that the API server said too little so far.
func (v *view) targets() ([]discover.Target, error) {
	for _, m := range v.mirrors {
		if synced, _ := m.state(); m.required && !synced {
			return nil, errNotYet
		}
	}
	switch s := v.source; {
	case s.Service != "":
		list := all[*slice](v.of(endpointSlices))
		v.protocol = protocolOf(list, s)
		found, err := served(list, all[*pod](v.of(pods)), s)
		if err != nil {
			return nil, err
		}
		return v.finish(found), nil
	case s.InferencePool != "":
		err := v.lookUp()
		if v.pool == nil {
			return nil, err
		}
		v.protocol = v.pool.protocol
		list, _ := v.matching()
		return v.finish(selected(list, v.pool.ports)), err
	}
	list, err := v.matching()
	switch {
	case err != nil:
		return nil, err
	case v.source.AIBrix != "":
		return v.finish(aibrix(list, v.ports())), nil
	}
	return v.finish(selected(list, v.ports())), nil
}

// matching returns the pods that have the labels of the source, which is no Service; of an InferencePool that was looked up.
func (v *view) matching() ([]*pod, error) {
	selector := labels.SelectorFromSet(labels.Set{aibrixName: v.source.AIBrix})
	switch s := v.source; {
	case s.InferencePool != "":
		selector = labels.SelectorFromSet(v.pool.selector)
	case s.Selector != "":
		var err error
		if selector, err = labels.Parse(s.Selector); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(all[*pod](v.of(pods)), func(p *pod) bool { return !selector.Matches(labels.Set(p.labels)) }), nil
}

// nothing says what there is instead of endpoints.
func (v *view) nothing() string {
	if name := v.source.Service; name != "" {
		for _, sl := range all[*slice](v.of(endpointSlices)) {
			if sl.service == name {
				return "no address in the EndpointSlices of the Service is ready"
			}
		}
		return fmt.Sprintf("there are no EndpointSlices of a Service %s in namespace %s", name, v.namespace)
	}
	matching, _ := v.matching() // a selector that is none was an error of targets
	ready := 0
	for _, p := range matching {
		if p.ready {
			ready++
		}
	}
	switch {
	case len(matching) == 0:
		return fmt.Sprintf("of the %d pods in namespace %s none has the labels", len(all[*pod](v.of(pods))), v.namespace)
	case ready == 0:
		return fmt.Sprintf("of the %d pods with the labels in namespace %s none is Ready", len(matching), v.namespace)
	}
	return fmt.Sprintf("of the %d Ready pods with the labels in namespace %s none serves at one of the ports: an annotation or a label of theirs says so", ready, v.namespace)
}

// of returns the mirror of a kind, nil if the source does not need it.
func (v *view) of(k kind) *mirror {
	for _, m := range v.mirrors {
		if m.key.kind == k {
			return m.mirror
		}
	}
	return nil
}

// ports are the source's own, or the usual one.
func (v *view) ports() []int {
	if len(v.source.Ports) == 0 {
		return []int{defaultPort}
	}
	return v.source.Ports
}

// lookUp brings the InferencePool up to date. One that is deleted, or that cannot be read, stays what it was: its pods
// are followed all the same, so nothing of it can be wrong but the wish to have it.
func (v *view) lookUp() error {
	var denied error
	for _, k := range []kind{poolsV1, poolsV1Alpha2} {
		m := v.of(k)
		synced, no := m.state()
		if p, ok := m.get(v.source.InferencePool).(*inferencePool); ok {
			if p.err != nil {
				return fmt.Errorf("reading InferencePool %s/%s: %w", v.namespace, v.source.InferencePool, p.err)
			}
			v.pool = p
			return nil
		}
		if !synced && no == nil {
			return errNotYet
		}
		denied = cmp.Or(denied, no)
	}
	if denied != nil {
		return fmt.Errorf("there is no InferencePool %s/%s to be seen: %w", v.namespace, v.source.InferencePool, denied)
	}
	return fmt.Errorf("there is no InferencePool %s/%s", v.namespace, v.source.InferencePool)
}

// finish makes targets of endpoints: in order, each address once. Where two pods claim an address, the younger one has
// it: the older one's end has not been written down yet.
func (v *view) finish(found []endpoint) []discover.Target {
	slices.SortFunc(found, func(a, b endpoint) int {
		return cmp.Or(a.addr.Compare(b.addr), b.born.Compare(a.born), cmp.Compare(a.id, b.id))
	})
	found = slices.CompactFunc(found, func(a, b endpoint) bool { return a.addr == b.addr })
	targets := make([]discover.Target, len(found))
	for i, e := range found {
		targets[i] = discover.Target{URL: "http://" + e.addr.String(), ID: e.id, MetricsPort: e.metrics}
		if v.source.ReadArgs {
			targets[i].Settings = e.settings
		}
	}
	return targets
}
