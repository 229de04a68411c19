package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/testkit/kubetest"
)

// applyAll sends manifests, which the server must take.
func applyAll(t *testing.T, s *kubetest.Server, manifests string) {
	t.Helper()
	if err := s.Apply(manifests, false); err != nil {
		t.Fatal(err)
	}
}

// do sends a request that must succeed.
func do(t *testing.T, s *kubetest.Server, method, path, contentType, body string) {
	t.Helper()
	status, answer, err := s.Do(method, path, contentType, []byte(body))
	if err != nil || status >= 300 {
		t.Fatalf("%s %s: %d %v %s", method, path, status, err, answer)
	}
}

// makePod writes a pod of a namespace and its status, as a kubelet would.
func makePod(t *testing.T, s *kubetest.Server, namespace, name, ip string, ready bool) {
	t.Helper()
	applyAll(t, s, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {app: vllm}
spec:
  nodeName: node-1
  containers:
    - name: vllm
      image: vllm
      args: [--max-num-seqs=64]
`, name, namespace))
	setStatus(t, s, namespace, name, ip, ready)
}

func setStatus(t *testing.T, s *kubetest.Server, namespace, name, ip string, ready bool) {
	t.Helper()
	word := map[bool]string{true: "True", false: "False"}[ready]
	do(t, s, http.MethodPatch, "/api/v1/namespaces/"+namespace+"/pods/"+name+"/status", "application/merge-patch+json", fmt.Sprintf(
		`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":%q}]}}`, ip, ip, word))
}

// deletePod asks a pod to end; at once means that it is gone.
func deletePod(t *testing.T, s *kubetest.Server, namespace, name string, atOnce bool) {
	t.Helper()
	grace := 30
	if atOnce {
		grace = 0
	}
	do(t, s, http.MethodDelete, "/api/v1/namespaces/"+namespace+"/pods/"+name, "", fmt.Sprintf(`{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":%d}`, grace))
}

func makePool(t *testing.T, s *kubetest.Server, ports ...string) {
	t.Helper()
	applyAll(t, s, `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: chat
  namespace: models
spec:
  endpointPickerRef: {name: pointsman, port: {number: 9002}}
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: `+strings.Join(ports, "}, {number: ")+`}]
`)
}

const namespaces = `apiVersion: v1
kind: Namespace
metadata:
  name: models
---
apiVersion: v1
kind: Namespace
metadata:
  name: other
`

// sets keeps the last set of a discoverer that runs.
type sets struct {
	mu   sync.Mutex
	last []discover.Target
	seen bool
}

// watchSource runs a discoverer; the function it returns ends it and waits for that.
func watchSource(t *testing.T, c *Cluster, s Source) (*sets, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	k, up, done := &sets{}, make(chan []discover.Target), make(chan struct{})
	go func() { c.Discover(s).Run(ctx, up); close(done) }()
	go func() {
		for {
			select {
			case set := <-up:
				k.mu.Lock()
				k.last, k.seen = set, true
				k.mu.Unlock()
			case <-done:
				return
			}
		}
	}()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return k, stop
}

// is reports whether the last set has these addresses.
func (k *sets) is(want ...string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen && slices.Equal(texts(k.last), want)
}

// want waits until the last set is this one.
func (k *sets) want(t *testing.T, within time.Duration, want ...string) {
	t.Helper()
	for end := time.Now().Add(within); !k.is(want...); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			k.mu.Lock()
			defer k.mu.Unlock()
			t.Fatalf("after %v the set is %v (seen: %v), want %v", within, texts(k.last), k.seen, want)
		}
	}
}

// stays demands that the set does not change for a while.
func (k *sets) stays(t *testing.T, d time.Duration, want ...string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if !k.is(want...) {
			t.Fatalf("the set changed: %v", k.last)
		}
	}
}

// slack is above what a change takes (some 30 ms) by what a busy machine adds.
const slack = 20 * time.Second

// The life of an InferencePool and its pods on a real API server, which is killed while they change.
func TestRealInferencePool(t *testing.T) {
	s := kubetest.Start(t)
	applyAll(t, s, namespaces)
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&locked{w: &out}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	access := Access{Kubeconfig: s.Kubeconfig(kubetest.AdminToken, "models")}
	applyAll(t, s, kubetest.InferencePools(t))
	c := NewCluster(access, log)
	k, stop := watchSource(t, c, Source{InferencePool: "chat", ReadArgs: true})
	makePool(t, s, "8000", "8001")
	k.want(t, slack)
	makePod(t, s, "models", "a", "10.0.0.1", false)
	makePod(t, s, "models", "b", "fd00::1", true)
	makePod(t, s, "other", "x", "10.9.9.9", true)
	k.want(t, slack, "[fd00::1]:8000", "[fd00::1]:8001")
	setStatus(t, s, "models", "a", "10.0.0.1", true)
	k.want(t, slack, "10.0.0.1:8000", "10.0.0.1:8001", "[fd00::1]:8000", "[fd00::1]:8001")
	if n := k.last[0].Settings.MaxNumSeqs; n != 64 {
		t.Errorf("the pod's arguments say 64 sequences, got %d", n)
	}
	deletePod(t, s, "models", "b", false)
	k.want(t, slack, "10.0.0.1:8000", "10.0.0.1:8001")
	deletePod(t, s, "models", "b", true)
	setStatus(t, s, "models", "a", "10.0.0.7", true)
	k.want(t, slack, "10.0.0.7:8000", "10.0.0.7:8001")
	makePool(t, s, "8001")
	k.want(t, slack, "10.0.0.7:8001")
	old := k.last[0].ID

	// Away: everything changes through another server meanwhile, and the history is forgotten.
	other := s.Beside()
	s.Stop()
	deletePod(t, other, "models", "a", true)
	makePod(t, other, "models", "a", "10.0.0.7", true) // the same name and address: another pod
	makePod(t, other, "models", "c", "10.0.0.3", true)
	makePod(t, other, "models", "d", "10.0.0.4", true)
	deletePod(t, other, "models", "d", true)
	makePool(t, other, "8002")
	k.stays(t, 2*time.Second, "10.0.0.7:8001")
	other.Compact()
	s.Resume()
	back := time.Now()
	k.want(t, retryMost+2*time.Second+slack, "10.0.0.3:8002", "10.0.0.7:8002")
	t.Logf("whole %v after the server was ready again", time.Since(back).Round(time.Millisecond))
	if k.last[1].ID == old {
		t.Error("a pod that was made anew has the ID of the one before it")
	}
	setStatus(t, s, "models", "c", "10.0.0.3", false) // watches work again
	k.want(t, slack, "10.0.0.7:8002")

	stop()
	noGoroutines(t)
	if text := out.String(); strings.Count(text, "endpoints source broken") == 0 || strings.Contains(text, "max-num-seqs") || strings.Contains(text, "Body") {
		t.Errorf("the log is not what it should be:\n%s", text)
	}
}

// stacks is what every goroutine does.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// locked is a writer for several goroutines.
type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.String()
}

// A Role in one namespace is enough, and it is enough that it comes late; another namespace stays closed. The old
// InferencePool and EndpointSlices are read like the new one.
func TestRealRights(t *testing.T) {
	s := kubetest.Start(t)
	applyAll(t, s, kubetest.InferencePools(t)+"\n---\n"+namespaces)
	makePod(t, s, "models", "a", "10.0.0.1", true)
	makePod(t, s, "other", "x", "10.9.9.9", true)
	applyAll(t, s, `apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata:
  name: old
  namespace: models
spec:
  extensionRef: {name: pointsman}
  selector: {app: vllm}
  targetPortNumber: 8000
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: vllm-1
  namespace: models
  labels: {kubernetes.io/service-name: vllm}
addressType: IPv4
ports: [{name: http, port: 8000}]
endpoints:
  - addresses: [10.0.0.1]
    conditions: {ready: true, serving: true, terminating: false}
  - addresses: [10.0.0.2]
    conditions: {ready: false, serving: true, terminating: true}
`)
	c := NewCluster(Access{Kubeconfig: s.Kubeconfig(kubetest.UserToken, "models")}, slog.New(slog.DiscardHandler))
	var all []*sets
	for _, source := range []Source{{Selector: "app=vllm"}, {Service: "vllm"}, {AIBrix: "none"}, {InferencePool: "old"}} {
		k, _ := watchSource(t, c, source)
		all = append(all, k)
	}
	closed, _ := watchSource(t, c, Source{Selector: "app=vllm", Namespace: "other"})
	page, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, role, _ := strings.Cut(string(page), "```yaml\napiVersion: rbac") // the one that users are told to make
	role, _, _ = strings.Cut("apiVersion: rbac"+role, "```")
	applyAll(t, s, role+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: pointsman
  namespace: models
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pointsman}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: gateway}]
`)
	const within = absentPause + 2*retryMost + slack
	all[0].want(t, within, "10.0.0.1:8000")
	all[1].want(t, within, "10.0.0.1:8000")
	all[2].want(t, within)
	all[3].want(t, within, "10.0.0.1:8000")
	if closed.seen {
		t.Errorf("a namespace without rights has the endpoints %v", closed.last)
	}
}
