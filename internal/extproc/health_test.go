package extproc

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// TestHealth: the names that gateways and kubelets ask for, before an endpoint is known, afterwards, and when the processor leaves.
func TestHealth(t *testing.T) {
	var ready atomic.Bool
	r := newRig(t, endpoints(1), func(c *Config) { c.Ready = ready.Load })
	client := healthv1.NewHealthClient(r.conn)
	state := func(name string) string {
		res, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		if err != nil {
			return "error"
		}
		return res.Status.String()
	}
	all := func() string {
		var s []string
		for _, name := range []string{"liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "", "other"} {
			s = append(s, state(name))
		}
		return strings.Join(s, " ")
	}
	watch, err := client.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	watched := func(want string) {
		t.Helper()
		if m, err := watch.Recv(); err != nil || m.Status.String() != want {
			t.Errorf("watched %v, %v, want %s", m, err, want)
		}
	}
	if got := all(); got != "SERVING NOT_SERVING NOT_SERVING NOT_SERVING error" {
		t.Errorf("before an endpoint is known: %s", got)
	}
	watched("NOT_SERVING")
	ready.Store(true)
	if got := all(); got != "SERVING SERVING SERVING SERVING error" {
		t.Errorf("ready: %s", got)
	}
	watched("SERVING")
	ready.Store(false)
	if got := all(); got != "SERVING SERVING SERVING SERVING error" {
		t.Errorf("all endpoints ejected: %s", got)
	}
	r.server.Leave()
	if got := all(); got != "SERVING NOT_SERVING NOT_SERVING NOT_SERVING error" {
		t.Errorf("leaving: %s", got)
	}
	watched("NOT_SERVING")
}

// TestDrain: streams that are open finish, those that are not cut short get an error event, and watches do not hold the end up.
func TestDrain(t *testing.T) {
	r := newRig(t, endpoints(1))
	if _, err := healthv1.NewHealthClient(r.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	k := r.call()
	k.send(requestHeaders("POST", chat, false))
	k.send(requestBody(`{"model":"m","stream":true}`, true))
	k.picked()
	k.body()
	k.answerHeaders("200", "text/event-stream", false)
	r.server.Leave()
	done := make(chan struct{})
	go func() { r.server.Finish(); close(done) }()
	const delta = `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
	k.send(responseBody(delta, false))
	if got, _ := k.piece(); got != delta {
		t.Errorf("while it drains: %q", got)
	}
	r.server.CutAll()
	if got, end := k.piece(); !end || !strings.Contains(got, "gateway_shutdown") {
		t.Errorf("cut: %q, end %v", got, end)
	}
	k.close()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the end is held up")
	}
	if rec := r.record(); rec["outcome"] != "cut" || rec["error_reason"] != "shutdown" {
		t.Errorf("record %v", rec)
	}
}

// TestDrainBeforeTheAnswer: a request without an answer yet is refused when the drain is over, and no endpoint is blamed.
func TestDrainBeforeTheAnswer(t *testing.T) {
	r := newRig(t, endpoints(1))
	k := r.call()
	k.send(requestHeaders("POST", chat, false))
	k.send(requestBody(chatBody, true))
	k.picked()
	k.body()
	r.server.CutAll()
	if no := k.refused(); no.GetStatus().GetCode() != 503 || mutated(no.GetHeaders(), headerReason) != "shutdown" || mutated(no.GetHeaders(), headerNoRetry) != "false" {
		t.Errorf("refused with %v", no)
	}
	k.close()
	if rec := r.record(); rec["outcome"] != "cut" || rec["error_reason"] != "shutdown" {
		t.Errorf("record %v", rec)
	}
}
