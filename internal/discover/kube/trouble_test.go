package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A server that has seen no object of a kind change since its own start sends no bookmark: its silence is no trouble while
// it answers lists.
func TestSilenceOfAServerThatIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		c := a.cluster(slog.New(slog.NewTextHandler(&out, nil)))
		r := start(t, c, Source{Selector: "app=vllm"})
		r.want(time.Second, "10.0.0.1:8000")
		for range 60 {
			r.quiet(time.Minute)
			if why := c.broken(Source{Selector: "app=vllm"}); why != "" {
				t.Fatalf("broken: %s", why)
			}
		}
		r.stop()
		if out.Len() > 0 || a.listed(pods) < 20 {
			t.Errorf("%d lists in an hour, and the log is %q", a.listed(pods), out.String())
		}
	})
}

// A pool without endpoints says what there is instead.
func TestNoEndpointsFound(t *testing.T) {
	away := aPlace("10.0.0.1", "")
	away.Conditions = discoveryv1.EndpointConditions{Ready: new(false)}
	pool := poolObject(poolsV1, "chat", v1Spec("vllm", 8000))
	for _, c := range []struct {
		name    string
		s       Source
		k       kind
		objects []runtime.Object
		want    string
	}{
		{"empty namespace", Source{Selector: "app=vllm"}, pods, nil, "of the 0 pods in namespace models none has the labels"},
		{"other labels", Source{Selector: "app=vlm"}, pods, []runtime.Object{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2")}, "of the 2 pods in namespace models none has the labels"},
		{"not ready", Source{Selector: "app=vllm"}, pods, []runtime.Object{aPod("a", "10.0.0.1", notReady), aPod("b", "")}, "of the 2 pods with the labels in namespace models none is Ready"},
		{"aibrix", Source{AIBrix: "m"}, pods, []runtime.Object{aPod("a", "10.0.0.1", labelled(aibrixName, "m"), notReady), aPod("b", "10.0.0.2")}, "of the 1 pods with the labels in namespace models none is Ready"},
		{"aibrix draining", Source{AIBrix: "m"}, pods, []runtime.Object{aPod("a", "10.0.0.1", labelled(aibrixName, "m"), annotated(aibrixDraining, "true"))}, "of the 1 Ready pods with the labels in namespace models none serves"},
		{"inference pool", Source{InferencePool: "chat"}, poolsV1, []runtime.Object{pool, aPod("a", "10.0.0.1", notReady)}, "of the 1 pods with the labels in namespace models none is Ready"},
		{"no service", Source{Service: "vllm"}, endpointSlices, nil, "there are no EndpointSlices of a Service vllm in namespace models"},
		{"service not ready", Source{Service: "vllm"}, endpointSlices, []runtime.Object{aSlice("s", away)}, "no address in the EndpointSlices of the Service is ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, log := once(t, c.s, c.k, c.objects...)
			if got != "[]" || strings.Count(log, "no endpoints found") != 1 || !strings.Contains(log, c.want) {
				t.Errorf("got %s, want none and %q in the log\n%s", got, c.want, log)
			}
		})
	}
}

// What the server refuses is said with what there is to do, and another refusal at once, not a minute later.
func TestRefusals(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newFakeAPI()
		a.denied[pods] = apierrors.NewUnauthorized("Unauthorized")
		r := start(t, a.cluster(slog.New(slog.NewTextHandler(&out, nil))), Source{Selector: "app=vllm"})
		said := func(want string) {
			t.Helper()
			r.quiet(10 * time.Second)
			if strings.Count(out.String(), want) != 1 {
				t.Errorf("the log does not say %q once:\n%s", want, out.String())
			}
		}
		said("Unauthorized: the API server does not take the token or certificate")
		a.with(func() { a.denied[pods] = apierrors.NewForbidden(gr, "", errors.New("no")) })
		said("needed: a Role in namespace models with the verbs list and watch for pods")
		a.with(func() { a.denied[pods] = errors.New("dial tcp 10.0.0.1:443: connection refused") })
		said("connection refused")
		r.stop()
	})
	_, log := once(t, Source{InferencePool: "chat"}, pods)
	if want := "the server has no inferencepools.inference.networking.k8s.io/v1, whose CustomResourceDefinition is not installed"; !strings.Contains(log, want) {
		t.Errorf("the log does not say %q:\n%s", want, log)
	}
}

// Most clusters have one of the two definitions of an InferencePool: after an absence of the API server nothing is broken
// because it answers again that it has not the other.
func TestAbsentDefinitionAfterAnAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		a.with(func() { delete(a.denied, poolsV1) })
		a.put(poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 8000)))
		a.put(pods, aPod("a", "10.0.0.1"))
		s := Source{InferencePool: "chat"}
		c := a.cluster(quietLog())
		r := start(t, c, s)
		r.want(time.Second, "10.0.0.1:8000")
		a.leave()
		r.quiet(time.Minute)
		if c.broken(s) == "" {
			t.Error("nothing is broken while the API server is away")
		}
		a.with(func() { a.away = false })
		r.quiet(time.Minute)
		if why := c.broken(s); why != "" {
			t.Errorf("a minute after it is back: %s", why)
		}
	})
}
