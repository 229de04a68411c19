package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"pointsman.dev/pointsman/internal/testkit/kubetest"
)

// patch changes an object of the namespace models, as `kubectl patch --type merge`.
func patch(t *testing.T, s *kubetest.Server, path, body string) {
	t.Helper()
	do(t, s, http.MethodPatch, path, "application/merge-patch+json", body)
}

func pathOf(pod string) string { return "/api/v1/namespaces/models/pods/" + pod }

// aSliceOf writes an EndpointSlice of the Service vllm. It has none of the controller's checks: the test is the controller.
func aSliceOf(t *testing.T, s *kubetest.Server, name, family, ports, endpoints string) {
	t.Helper()
	applyAll(t, s, fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s
  namespace: models
  labels: {kubernetes.io/service-name: vllm}
addressType: %s
ports: [%s]
endpoints: [%s]
`, name, family, ports, endpoints))
}

// lists records when a cluster's lists were answered.
type lists struct {
	mu   sync.Mutex
	last map[kind]time.Time
	n    map[kind]int
}

// record makes a cluster that tells of its lists.
func (l *lists) record(c *Cluster) {
	l.last, l.n = map[kind]time.Time{}, map[kind]int{}
	dial := c.dial
	c.dial = func() (*connection, error) {
		conn, err := dial()
		if err != nil {
			return nil, err
		}
		open := conn.open
		conn.open = func(k kind, namespace string) cache.ListerWatcher {
			inner := cache.ToListerWatcherWithContext(open(k, namespace))
			return &cache.ListWatch{WatchFuncWithContext: inner.WatchWithContext,
				ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
					list, err := inner.ListWithContext(ctx, opts)
					if err == nil {
						l.mu.Lock()
						l.last[k] = time.Now()
						l.n[k]++
						l.mu.Unlock()
					}
					return list, err
				}}
		}
		return conn, nil
	}
}

// count returns how often a kind was listed, and when the last time.
func (l *lists) count(k kind) (n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n[k], l.last[k]
}

// after waits until a kind was listed more than n times, and returns when.
func (l *lists) after(t *testing.T, k kind, n int) time.Time {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if now, at := l.count(k); now > n {
			return at
		}
		if time.Now().After(end) {
			t.Fatalf("%s was not listed anew", k)
		}
	}
}

// Every source in one process against a real API server: AIBrix's labels, the ranks of an InferencePool, a Service's slices, a
// selector. Then the server is killed, everything changes, and its lists are the whole truth of every one of them.
func TestRealSources(t *testing.T) {
	s := kubetest.Start(t)
	applyAll(t, s, kubetest.InferencePools(t)+"\n---\n"+namespaces)
	var out bytes.Buffer
	log := &locked{w: &out}
	c := NewCluster(Access{Kubeconfig: s.Kubeconfig(kubetest.AdminToken, "models")}, slog.New(slog.NewTextHandler(log, nil)))
	var seen lists
	seen.record(c)
	ranks, stopRanks := watchSource(t, c, Source{InferencePool: "chat"})
	model, stopModel := watchSource(t, c, Source{AIBrix: "llama"})
	service, stopService := watchSource(t, c, Source{Service: "vllm"})
	plain, stopPlain := watchSource(t, c, Source{Selector: "app=vllm,!model.aibrix.ai/name", Ports: []int{80}})

	// Ranks: three ports of two pods, of which one has some at work only; then fewer for all.
	makePool(t, s, "8000", "8001", "8002")
	makePod(t, s, "models", "a", "10.0.0.1", true)
	makePod(t, s, "models", "b", "10.0.0.2", true)
	ranks.want(t, slack, "10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.1:8002", "10.0.0.2:8000", "10.0.0.2:8001", "10.0.0.2:8002")
	patch(t, s, pathOf("a"), `{"metadata":{"annotations":{"llm-d.ai/active-ports":"8000,8002"}}}`)
	ranks.want(t, slack, "10.0.0.1:8000", "10.0.0.1:8002", "10.0.0.2:8000", "10.0.0.2:8001", "10.0.0.2:8002")
	makePool(t, s, "8001", "8002")
	ranks.want(t, slack, "10.0.0.1:8002", "10.0.0.2:8001", "10.0.0.2:8002")
	patch(t, s, pathOf("a"), `{"metadata":{"annotations":{"llm-d.ai/active-ports":null}}}`)
	ranks.want(t, slack, "10.0.0.1:8001", "10.0.0.1:8002", "10.0.0.2:8001", "10.0.0.2:8002")
	plain.want(t, slack, "10.0.0.1:80", "10.0.0.2:80")

	// appProtocol is said to be ignored, and is.
	patch(t, s, "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools/chat", `{"spec":{"appProtocol":"kubernetes.io/h2c"}}`)
	log.waitFor(t, "appProtocol is not followed", slack)

	// AIBrix: port, metrics at another one, a drain that is announced, a group's followers, another model.
	labels := func(name, text string) { patch(t, s, pathOf(name), `{"metadata":{"labels":{`+text+`}}}`) }
	labels("b", `"app":"other","model.aibrix.ai/name":"llama","model.aibrix.ai/port":"8008","model.aibrix.ai/metric-port":"8080"`)
	model.want(t, slack, "10.0.0.2:8008 (metrics at 8080)")
	ranks.want(t, slack, "10.0.0.1:8001", "10.0.0.1:8002")
	labels("b", `"model.aibrix.ai/metric-port":"8008"`)
	model.want(t, slack, "10.0.0.2:8008")
	labels("b", `"model.aibrix.ai/port":null,"model.aibrix.ai/metric-port":"8080"`)
	model.want(t, slack, "10.0.0.2:8000 (metrics at 8080)")
	patch(t, s, pathOf("b"), `{"metadata":{"annotations":{"aibrix.ai/draining":"true"}}}`)
	model.want(t, slack)
	patch(t, s, pathOf("b"), `{"metadata":{"annotations":{"aibrix.ai/draining":null}}}`)
	model.want(t, slack, "10.0.0.2:8000 (metrics at 8080)")
	labels("b", `"stormservice.orchestration.aibrix.ai/pod-group-index":"1"`)
	model.want(t, slack)
	labels("b", `"stormservice.orchestration.aibrix.ai/pod-group-index":"0"`)
	model.want(t, slack, "10.0.0.2:8000 (metrics at 8080)")

	// A Service's slices: what is published although it is not ready or ends, two families, a port that speaks something else.
	aSliceOf(t, s, "vllm-4", "IPv4", "{name: http, port: 8000, appProtocol: kubernetes.io/h2c}", `{addresses: [10.0.0.1], conditions: {ready: true}, targetRef: {kind: Pod, name: a, uid: x}}`+
		`, {addresses: [10.0.0.3], conditions: {ready: true, serving: false}}, {addresses: [10.0.0.4], conditions: {ready: true, serving: true, terminating: true}}, {addresses: [10.0.0.5]}`)
	aSliceOf(t, s, "vllm-6", "IPv6", "{name: http, port: 8000}", `{addresses: ["fd00::1"], conditions: {ready: true}, targetRef: {kind: Pod, name: a, uid: x}}, {addresses: ["fd00::2"]}`)
	service.want(t, slack, "10.0.0.1:8000", "10.0.0.5:8000", "[fd00::2]:8000")
	log.waitFor(t, `kubernetes="service vllm"`, slack)

	// The address of a pod that is gone has another one, with another name: another endpoint.
	before := model.last[0].ID
	deletePod(t, s, "models", "b", true)
	model.want(t, slack)
	makePod(t, s, "models", "c", "10.0.0.2", true)
	labels("c", `"model.aibrix.ai/name":"llama","model.aibrix.ai/metric-port":"8080"`)
	model.want(t, slack, "10.0.0.2:8000 (metrics at 8080)")
	if model.last[0].ID == before {
		t.Error("an address that was reused has the ID of the pod before")
	}

	// Killed, and everything changes through another server.
	var had [3]int
	kinds := []kind{pods, poolsV1, endpointSlices}
	for i, k := range kinds {
		had[i], _ = seen.count(k)
	}
	other := s.Beside()
	s.Stop()
	deletePod(t, other, "models", "a", true)
	deletePod(t, other, "models", "c", true)
	makePod(t, other, "models", "d", "10.0.0.1", true)
	makePod(t, other, "models", "e", "10.0.0.6", true)
	patch(t, other, pathOf("e"), `{"metadata":{"labels":{"model.aibrix.ai/name":"llama"}}}`)
	makePool(t, other, "8002")
	do(t, other, http.MethodDelete, "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices/vllm-6", "", "")
	aSliceOf(t, other, "vllm-4", "IPv4", "{name: http, port: 8009}", `{addresses: [10.0.0.5]}`)
	ranks.stays(t, time.Second, "10.0.0.1:8001", "10.0.0.1:8002", "10.0.0.2:8001", "10.0.0.2:8002")
	model.stays(t, time.Second/10, "10.0.0.2:8000 (metrics at 8080)")
	other.Compact()
	s.Resume()
	var listed time.Time
	for i, k := range kinds {
		if at := seen.after(t, k, had[i]); at.After(listed) {
			listed = at
		}
	}
	const bound = 2*time.Second + slack // of the lists, some 30 ms; slack is for a busy machine
	ranks.want(t, bound, "10.0.0.1:8002", "10.0.0.6:8002")
	model.want(t, bound, "10.0.0.6:8000")
	service.want(t, bound, "10.0.0.5:8009")
	plain.want(t, bound, "10.0.0.1:80")
	t.Logf("all four are whole %v after the last of the lists", time.Since(listed).Round(time.Millisecond))
	for _, k := range kinds {
		if n, _ := seen.count(k); n > 40 {
			t.Errorf("%s was listed %d times: the server is hammered", k, n)
		}
	}

	for _, stop := range []func(){stopRanks, stopModel, stopService, stopPlain} {
		stop()
	}
	noGoroutines(t)
	if text := log.String(); strings.Count(text, "appProtocol is not followed") != 2 {
		t.Errorf("of appProtocol it is said\n%s", text)
	}
}
