package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/discover/discovertest"
)

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Kubernetes keeps what every source promises, whichever objects the endpoints are read from.
func TestConforms(t *testing.T) {
	ip := func(t *testing.T, raw string) string {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		return u.Hostname()
	}
	for name, source := range map[string]Source{"selector": {Selector: "app=vllm"}, "service": {Service: "vllm"}} {
		t.Run(name, func(t *testing.T) {
			discovertest.Run(t, func(t *testing.T) discovertest.Source {
				a := newFakeAPI()
				t.Cleanup(func() { a.with(a.drop) })
				return discovertest.Source{
					New: func() discover.Discoverer { return a.cluster(quietLog()).Discover(source) },
					Set: func(urls []string) {
						a.with(func() { a.away = false })
						if source.Service != "" {
							var places []discoveryv1.Endpoint
							for _, u := range urls {
								places = append(places, aPlace(ip(t, u), ""))
							}
							a.put(endpointSlices, aSlice("vllm-1", places...))
							return
						}
						a.with(func() { // as a relist tells it: all at once
							a.objects[pods] = map[string]runtime.Object{}
							a.drop()
							a.expired = true
							for _, u := range urls {
								p := aPod("pod-"+strings.ReplaceAll(ip(t, u), ".", "-"), ip(t, u))
								a.objects[pods][p.Name] = p
							}
						})
					},
					Break:  a.leave,
					Within: 10 * time.Second,
				}
			})
		})
	}
}

// What a pod goes through, each step as its own watch event.
func TestPodLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		r := start(t, a.cluster(quietLog()), Source{Selector: "app=vllm"})
		const soon = 100 * time.Millisecond
		r.want(soon)
		a.put(pods, aPod("a", "", notReady)) // no address yet
		a.put(pods, aPod("a", "10.0.0.1", notReady))
		r.quiet(time.Second)
		a.put(pods, aPod("a", "10.0.0.1"))
		r.want(soon, "10.0.0.1:8000")
		a.put(pods, aPod("a", "10.0.0.1", annotated("written", "often")))
		r.quiet(time.Second)
		a.put(pods, aPod("b", "fd00::1"))
		r.want(soon, "10.0.0.1:8000", "[fd00::1]:8000")
		a.put(pods, aPod("a", "10.0.0.1", terminating))
		r.want(soon, "[fd00::1]:8000")
		a.remove(pods, "a")
		r.quiet(time.Second)
		a.put(pods, aPod("a", "10.0.0.9")) // the same name, another address
		r.want(soon, "10.0.0.9:8000", "[fd00::1]:8000")
		a.put(pods, aPod("a", "10.0.0.9", labelled("app", "other")))
		r.want(soon, "[fd00::1]:8000")
		a.put(pods, aPod("b", "fd00::1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
		r.want(soon)
	})
}

// An address that went to another pod is another endpoint, also when nobody saw it without one.
func TestAddressReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		r := start(t, a.cluster(quietLog()), Source{Selector: "app=vllm"})
		<-r.up
		a.put(pods, aPod("a", "10.0.0.1"))
		first := <-r.up
		// The younger pod has the address although the older one's end was not written down yet.
		a.put(pods, aPod("b", "10.0.0.1", func(p *corev1.Pod) { p.CreationTimestamp.Time = time.Now() }))
		second := <-r.up
		if len(second) != 1 || second[0].URL != first[0].URL || second[0].ID != "uid-b" || first[0].ID != "uid-a" {
			t.Errorf("got %v and then %v", first, second)
		}
		a.remove(pods, "a")
		r.quiet(time.Second)
		// A pod that was made anew under its name and address.
		a.put(pods, aPod("b", "10.0.0.1", func(p *corev1.Pod) { p.UID = "uid-b2" }))
		if third := <-r.up; third[0].ID != "uid-b2" {
			t.Errorf("got %v", third)
		}
	})
}

// While the API server is away the last set stays, for an hour too; what happened meanwhile is known soon after.
func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		a.put(pods, aPod("b", "10.0.0.2"))
		r := start(t, a.cluster(slog.New(slog.NewTextHandler(&out, nil))), Source{Selector: "app=vllm"})
		r.want(time.Second, "10.0.0.1:8000", "10.0.0.2:8000")
		a.leave()
		r.quiet(time.Hour)
		a.put(pods, aPod("c", "10.0.0.3"))
		a.remove(pods, "a")
		a.with(func() { a.away = false })
		r.want(10*time.Second, "10.0.0.2:8000", "10.0.0.3:8000")
		r.quiet(time.Minute)
		r.stop()
		if n := strings.Count(out.String(), "endpoints source broken"); n < 50 || n > 61 {
			t.Errorf("%d complaints in an hour, want about one each minute:\n%s", n, out.String())
		}
		if n := strings.Count(out.String(), "whole again"); n != 1 {
			t.Errorf("%d recoveries:\n%s", n, out.String())
		}
		if strings.Contains(out.String(), "reflector") {
			t.Errorf("client-go's own messages are in the log:\n%s", out.String())
		}
	})
}

// A watch from before what the server still remembers is answered with 410, and the list after it is the truth.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		r := start(t, a.cluster(quietLog()), Source{Selector: "app=vllm"})
		r.want(time.Second, "10.0.0.1:8000")
		a.with(func() { a.lossy = true })
		a.put(pods, aPod("b", "10.0.0.2"))
		a.remove(pods, "a")
		a.with(func() { a.lossy, a.expired = false, true; a.drop() })
		r.want(5*time.Second, "10.0.0.2:8000")
	})
}

// A watch that is open and says nothing is given up after a while, and so is one that lost events but lives.
func TestSilenceAndLoss(t *testing.T) {
	for name, alive := range map[string]bool{"silent": false, "lossy": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newFakeAPI()
				a.put(pods, aPod("a", "10.0.0.1"))
				r := start(t, a.cluster(quietLog()), Source{Selector: "app=vllm"})
				r.want(time.Second, "10.0.0.1:8000")
				a.with(func() { a.lossy = true })
				a.put(pods, aPod("b", "10.0.0.2"))
				within := silence + 5*time.Second
				if alive {
					// Bookmarks arrive each minute, until the server ends the watch as the client asked.
					within = 11 * time.Minute
					end := time.AfterFunc(10*time.Minute, func() { a.with(a.drop) })
					defer end.Stop()
					tick := time.NewTicker(time.Minute)
					defer tick.Stop()
					done := make(chan struct{})
					defer close(done)
					go bookmarks(a, tick.C, done)
				}
				r.want(within, "10.0.0.1:8000", "10.0.0.2:8000")
			})
		})
	}
}

// Something in between that answers lists and leaves watches without an answer hides nothing for longer than it may take
// to answer one.
func TestWatchWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		a.with(func() { a.mute = true })
		r := start(t, a.cluster(slog.New(slog.NewTextHandler(&out, nil))), Source{Selector: "app=vllm"})
		r.want(time.Second, "10.0.0.1:8000")
		a.put(pods, aPod("b", "10.0.0.2"))
		r.want(answerLimit+5*time.Second, "10.0.0.1:8000", "10.0.0.2:8000")
		a.with(func() { a.mute = false })
		time.Sleep(answerLimit + 5*time.Second)
		a.put(pods, aPod("c", "10.0.0.3"))
		r.want(100*time.Millisecond, "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
		r.stop()
		if text := out.String(); !strings.Contains(text, "watching: not begun within 30s") || !strings.Contains(text, "whole again") {
			t.Errorf("the log is\n%s", text)
		}
	})
}

func bookmarks(a *fakeAPI, tick <-chan time.Time, done <-chan struct{}) {
	for {
		select {
		case <-tick:
			a.with(func() {
				for w := range a.watches {
					w.Action("BOOKMARK", &corev1.Pod{})
				}
			})
		case <-done:
			return
		}
	}
}

// One mirror per namespace and kind, however many pools look into it, and none when nobody does.
func TestMirrorsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		c := a.cluster(quietLog())
		var running []*runner
		for range 5 {
			one, other := start(t, c, Source{Selector: "app=vllm"}), start(t, c, Source{Selector: "app=other", Namespace: "models"})
			one.want(time.Second, "10.0.0.1:8000")
			other.want(time.Second)
			running = append(running, one, other)
		}
		if n := a.listed(pods); n != 1 {
			t.Errorf("%d lists for ten pools of one namespace, want 1", n)
		}
		for _, r := range running {
			r.stop()
		}
		if len(c.mirrors) != 0 {
			t.Errorf("%d mirrors are left", len(c.mirrors))
		}
	})
}

// An API server that cannot be found, or does not let us see pods, is said and looked for; nothing is sent.
func TestNotAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		a.denied[pods] = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("User \"gateway\" cannot list"))
		c := a.cluster(slog.New(slog.NewTextHandler(&out, nil)))
		real, tries := c.dial, 0
		c.dial = func() (*connection, error) {
			if tries++; tries < 3 {
				return nil, errors.New("no kubeconfig")
			}
			return real()
		}
		r := start(t, c, Source{Selector: "app=vllm"})
		r.quiet(5 * time.Minute)
		a.with(func() { delete(a.denied, pods) })
		r.want(10*time.Second, "10.0.0.1:8000")
		r.stop()
		for _, want := range []string{"finding the API server: no kubeconfig", "cannot list", "kubernetes=pods", "namespace=models"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, out.String())
			}
		}
	})
}
