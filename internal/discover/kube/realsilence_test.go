package kube

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/kubetest"
)

// An API server that stops in the middle of its work, and a wire that swallows every byte, look the same: connections
// stay open, and nothing is said for as long as that takes. What is known is served on, the log says why, and soon
// after the silence everything is as it should be.
func TestRealSilence(t *testing.T) {
	kubetest.Heal(t)
	s := kubetest.Start(t)
	applyAll(t, s, namespaces)
	other, wire := s.Beside(), s.Wire()
	for _, c := range []struct {
		name, via  string
		begin, end func()
		within     time.Duration // of the silence's end
	}{
		{"frozen", s.URL, s.Freeze, s.Thaw, 2 * time.Second},
		// the request that waits for a connection at its end is given up first
		{"wire", wire.URL, func() { wire.Swallow(true) }, func() { wire.Swallow(false) }, connectLimit + retryMost*13/10 + 2*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			log := &locked{w: &out}
			access := Access{Kubeconfig: s.KubeconfigVia(c.via, kubetest.AdminToken, "models")}
			k, stop := watchSource(t, NewCluster(access, slog.New(slog.NewTextHandler(log, nil))), Source{Selector: "app=vllm"})
			makePod(t, other, "models", "a", "10.0.0.1", true)
			makePod(t, other, "models", "b", "10.0.0.2", true)
			k.want(t, slack, "10.0.0.1:8000", "10.0.0.2:8000")

			c.begin()
			deletePod(t, other, "models", "a", true)
			makePod(t, other, "models", "c", "10.0.0.3", true)
			silent := time.Now()
			log.waitFor(t, "endpoints source broken", 20*time.Second)
			t.Logf("noticed after %v", time.Since(silent).Round(time.Millisecond))
			k.stays(t, time.Second, "10.0.0.1:8000", "10.0.0.2:8000")
			c.end()
			back := time.Now()
			k.want(t, c.within+slack, "10.0.0.2:8000", "10.0.0.3:8000")
			t.Logf("whole %v after the silence", time.Since(back).Round(time.Millisecond))
			log.waitFor(t, "endpoints source whole again", slack)
			deletePod(t, other, "models", "b", true)
			k.want(t, slack, "10.0.0.3:8000")

			c.begin() // nothing waits for a server that does not answer
			end := time.Now()
			stop()
			if took := time.Since(end); took > connectLimit {
				t.Errorf("ending in the silence took %v", took)
			}
			c.end()
			deletePod(t, other, "models", "c", true)
		})
	}
	noGoroutines(t)
}

// waitFor waits until a text was logged.
func (l *locked) waitFor(t *testing.T, part string, within time.Duration) {
	t.Helper()
	for end := time.Now().Add(within); !strings.Contains(l.String(), part); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v %q was not logged:\n%s", within, part, l.String())
		}
	}
}

// noGoroutines waits until nothing of a source runs any more: no discoverer, no mirror, nothing of client-go, and no connection to an API
// server. Those of the test's own client are HTTP/1.1.
func noGoroutines(t *testing.T) {
	t.Helper()
	left := func() string {
		for stack := range strings.SplitSeq(stacks(), "\n\n") {
			for _, mine := range []string{"k8s.io/client-go/", "discover/kube.follow(", "discover/kube.(*", "discover/kube.watchSilence", "http2"} {
				if strings.Contains(stack, mine) && !strings.Contains(stack, "kube.noGoroutines") && !strings.Contains(stack, "kube.TestReal") {
					return stack
				}
			}
		}
		return ""
	}
	for end := time.Now().Add(slack); left() != ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a goroutine is left:\n%s", left())
		}
	}
}
