package kube

import (
	"context"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"pointsman.dev/pointsman/internal/discover"
)

// kind is a kind of objects, by the name of its resource.
type kind string

const (
	pods           kind = "pods"
	endpointSlices kind = "endpointslices.discovery.k8s.io"
	poolsV1        kind = "inferencepools.inference.networking.k8s.io"
	poolsV1Alpha2  kind = "inferencepools.inference.networking.x-k8s.io"
)

func (k kind) isPool() bool { return k == poolsV1 || k == poolsV1Alpha2 }

// inferencePools is where an InferencePool of either version is served.
func (k kind) inferencePools() schema.GroupVersionResource {
	if k == poolsV1 {
		return schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}
	}
	return schema.GroupVersionResource{Group: "inference.networking.x-k8s.io", Version: "v1alpha2", Resource: "inferencepools"}
}

// expected is an object of the kind, as the reflector checks it.
func (k kind) expected() any {
	switch k {
	case pods:
		return &corev1.Pod{}
	case endpointSlices:
		return &discoveryv1.EndpointSlice{}
	}
	u := &unstructured.Unstructured{}
	gvr := k.inferencePools()
	u.SetGroupVersionKind(gvr.GroupVersion().WithKind("InferencePool"))
	return u
}

// reduce keeps of an object what endpoints are made of; nil for what has none.
func reduce(obj any) any {
	switch o := obj.(type) {
	case *corev1.Pod:
		return reducePod(o)
	case *discoveryv1.EndpointSlice:
		return reduceSlice(o)
	case *unstructured.Unstructured:
		return reducePool(o)
	}
	return nil
}

// mirror holds what the API server last said of one kind in one namespace. A reflector writes it; a relist replaces it as
// a whole, so that no set is ever made of half a list. It outlives whatever happens to the API server.
type mirror struct {
	key   mirrorKey
	stop  context.CancelFunc
	ended chan struct{}
	users int // guarded by the Cluster's mutex

	condition discover.Condition // whether it is the truth

	mu     sync.Mutex
	items  map[string]any // by name: *pod, *slice or *inferencePool
	synced bool           // there was a complete list
	denied error          // the server does not have this kind, or does not show it to us
	kicks  map[chan<- struct{}]bool
}

func newMirror(key mirrorKey) *mirror {
	return &mirror{key: key, ended: make(chan struct{}), items: map[string]any{}, kicks: map[chan<- struct{}]bool{}}
}

// subscribe gives kick a token now and at each change.
func (m *mirror) subscribe(kick chan<- struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kicks[kick] = true
	m.changed()
}

func (m *mirror) unsubscribe(kick chan<- struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kicks, kick)
}

// changed tells everybody. The mutex is held.
func (m *mirror) changed() {
	for kick := range m.kicks {
		select {
		case kick <- struct{}{}:
		default: // it has one already
		}
	}
}

// deny records that the server answered that there is nothing to see, nil that there is.
func (m *mirror) deny(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if (m.denied == nil) != (err == nil) {
		m.denied = err
		m.changed()
	}
}

// state returns whether the mirror is complete, and why it will not be soon.
func (m *mirror) state() (synced bool, denied error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced, m.denied
}

// count returns how many objects are known.
func (m *mirror) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.items)
}

// get returns the object of a name, nil when there is none.
func (m *mirror) get(name string) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.items[name]
}

// all returns the objects of a mirror, in no order; of no mirror, none. They are shared and never change.
func all[T any](m *mirror) []T {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]T, 0, len(m.items))
	for _, item := range m.items {
		if t, ok := item.(T); ok {
			list = append(list, t)
		}
	}
	return list
}

// Add implements cache.ReflectorStore.
func (m *mirror) Add(obj any) error { return m.put(obj, reduce(obj)) }

// Update implements cache.ReflectorStore.
func (m *mirror) Update(obj any) error { return m.put(obj, reduce(obj)) }

// Delete implements cache.ReflectorStore.
func (m *mirror) Delete(obj any) error { return m.put(obj, nil) }

// put makes item what is known of obj, nil to forget it. What does not change the item wakes nobody: pods' status is
// written often, and seldom says something new.
func (m *mirror) put(obj, item any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if reflect.DeepEqual(m.items[o.GetName()], item) {
		return nil
	}
	if item == nil {
		delete(m.items, o.GetName())
	} else {
		m.items[o.GetName()] = item
	}
	m.changed()
	return nil
}

// Replace implements cache.ReflectorStore: list is everything there is.
func (m *mirror) Replace(list []any, _ string) error {
	items := make(map[string]any, len(list))
	for _, obj := range list {
		o, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		if item := reduce(obj); item != nil {
			items[o.GetName()] = item
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.synced || !reflect.DeepEqual(m.items, items) {
		m.items, m.synced = items, true
		m.changed()
	}
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do: readers look at everything each time.
func (m *mirror) Resync() error { return nil }
