package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"pointsman.dev/pointsman/internal/discover"
)

// fakeAPI is an API server with one namespace that can be away, lose events and fall silent.
type fakeAPI struct {
	mu      sync.Mutex
	objects map[kind]map[string]runtime.Object
	version int
	watches map[*watch.RaceFreeFakeWatcher]kind
	away    bool
	lossy   bool           // events are lost
	denied  map[kind]error // answers for a kind
	expired bool           // the next watch gets a 410
	mute    bool           // watches are not answered
	lists   map[kind]int
}

func newFakeAPI() *fakeAPI {
	a := &fakeAPI{objects: map[kind]map[string]runtime.Object{}, watches: map[*watch.RaceFreeFakeWatcher]kind{}, lists: map[kind]int{}}
	a.denied = map[kind]error{
		poolsV1:       apierrors.NewNotFound(schema.GroupResource{Resource: "inferencepools"}, ""),
		poolsV1Alpha2: apierrors.NewNotFound(schema.GroupResource{Resource: "inferencepools"}, ""),
	}
	return a
}

// cluster is a Cluster that talks to the fake.
func (a *fakeAPI) cluster(log *slog.Logger) *Cluster {
	c := NewCluster(Access{}, log)
	c.dial = func() (*connection, error) {
		return &connection{namespace: "models", open: a.open, close: func() {}}, nil
	}
	return c
}

func (a *fakeAPI) open(k kind, _ string) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return a.list(k) },
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) { return a.watch(ctx, k) },
	}
}

func (a *fakeAPI) list(k kind) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists[k]++
	if err := a.refusal(k); err != nil {
		return nil, err
	}
	var items []runtime.Object
	for _, o := range a.objects[k] {
		items = append(items, o.DeepCopyObject())
	}
	l := &corev1.List{}
	l.ResourceVersion = strconv.Itoa(a.version)
	return l, meta.SetList(l, items)
}

func (a *fakeAPI) watch(ctx context.Context, k kind) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mute {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()
		return nil, ctx.Err()
	}
	if err := a.refusal(k); err != nil {
		return nil, err
	}
	if a.expired {
		a.expired = false
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	w := watch.NewRaceFreeFake()
	a.watches[w] = k
	return w, nil
}

func (a *fakeAPI) refusal(k kind) error {
	if a.away {
		return errors.New("dial tcp 10.96.0.1:443: connect: connection refused")
	}
	return a.denied[k]
}

// leave makes the server go away, and every watch with it.
func (a *fakeAPI) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = true
	a.drop()
}

// drop ends every watch. The mutex is held.
func (a *fakeAPI) drop() {
	for w := range a.watches {
		w.Stop()
	}
	clear(a.watches)
}

func (a *fakeAPI) with(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// put writes an object and tells the watches.
func (a *fakeAPI) put(k kind, o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc, _ := meta.Accessor(o)
	a.version++
	acc.SetResourceVersion(strconv.Itoa(a.version))
	if a.objects[k] == nil {
		a.objects[k] = map[string]runtime.Object{}
	}
	_, had := a.objects[k][acc.GetName()]
	a.objects[k][acc.GetName()] = o
	for w, of := range a.watches {
		if of == k && !a.lossy && had {
			w.Modify(o.DeepCopyObject())
		} else if of == k && !a.lossy {
			w.Add(o.DeepCopyObject())
		}
	}
}

// remove deletes an object and tells the watches.
func (a *fakeAPI) remove(k kind, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects[k][name]
	delete(a.objects[k], name)
	a.version++
	for w, of := range a.watches {
		if of == k && !a.lossy {
			w.Delete(o.DeepCopyObject())
		}
	}
}

func (a *fakeAPI) listed(k kind) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists[k]
}

// aPod is a pod that is Ready, changed by some functions.
func aPod(name, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Namespace, p.UID = name, "models", types.UID("uid-"+name)
	p.Labels = map[string]string{"app": "vllm"}
	p.Status.PodIP, p.Status.Phase = ip, corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(p)
	}
	return p
}

func notReady(p *corev1.Pod)    { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

// aSlice is a slice of the Service vllm with one port and some endpoints.
func aSlice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints}
	s.Name, s.Namespace = name, "models"
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "vllm"}
	s.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8000))}}
	return s
}

// aPlace is an endpoint of a pod that is ready.
func aPlace(ip, uid string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
	if uid != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", UID: types.UID(uid)}
	}
	return e
}

// poolObject is an InferencePool from JSON-like content.
func poolObject(k kind, name string, spec map[string]any) *unstructured.Unstructured {
	gvr := k.inferencePools()
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": "InferencePool",
		"metadata": map[string]any{"name": name, "namespace": "models"}, "spec": spec}}
}

func v1Spec(app string, ports ...int64) map[string]any {
	list := make([]any, len(ports))
	for i, p := range ports {
		list[i] = map[string]any{"number": p}
	}
	return map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}, "targetPorts": list}
}

// runner runs a discoverer and keeps the last set.
type runner struct {
	t    *testing.T
	up   chan []discover.Target
	stop func() // ends it and waits
}

func start(t *testing.T, c *Cluster, s Source) *runner {
	ctx, cancel := context.WithCancel(t.Context())
	r := &runner{t: t, up: make(chan []discover.Target)}
	done := make(chan struct{})
	go func() { c.Discover(s).Run(ctx, r.up); close(done) }()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// want demands that the next set comes within some time and is this one.
func (r *runner) want(within time.Duration, urls ...string) {
	r.t.Helper()
	select {
	case set := <-r.up:
		if got := texts(set); fmt.Sprint(got) != fmt.Sprint(urls) {
			r.t.Fatalf("got the set %v, want %v", got, urls)
		}
	case <-time.After(within):
		r.t.Fatalf("no set within %v, want %v", within, urls)
	}
}

// quiet demands that nothing is sent.
func (r *runner) quiet(d time.Duration) {
	r.t.Helper()
	select {
	case set := <-r.up:
		r.t.Fatalf("got the set %v, want nothing", texts(set))
	case <-time.After(d):
	}
}

// texts are targets without the scheme, and with the ID where it says something.
func texts(set []discover.Target) []string {
	list := make([]string, len(set))
	for i, t := range set {
		list[i] = t.URL[len("http://"):]
		if t.MetricsPort > 0 {
			list[i] += fmt.Sprintf(" (metrics at %d)", t.MetricsPort)
		}
	}
	return list
}
