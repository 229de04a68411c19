package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestTakeOver replaces a Proxy as a reload does: stored responses stay known, what is in flight ends under the limits it
// began with, and CutAll of the newest reaches the requests of the oldest.
func TestTakeOver(t *testing.T) {
	open := make(chan struct{}, 1)
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/responses") {
			answerJSON(w, 200, `{"id":"resp_1","object":"response","status":"completed","output":[]}`)
			return
		}
		answerStream(w, delta("a"))
		open <- struct{}{}
		<-r.Context().Done()
	})
	r := newRig(t, []string{ep.URL})
	if _, err := read(r.post("/v1/responses", `{"model":"m","input":"x"}`)); err != nil {
		t.Fatal(err)
	}
	r.record()
	ended := make(chan string, 1)
	go func() {
		body, _ := read(r.post(chat, streamBody))
		ended <- body
	}()
	<-open
	cfg := r.proxy.cfg
	cfg.Limit, cfg.Previous = time.Minute, r.proxy
	next := New(cfg)
	r.current.Store(next)
	if got := next.memory.Keeper("resp_1"); got != ep.name {
		t.Errorf("the stored response is at %q", got)
	}
	if r.proxy.cfg.Limit != 60*time.Minute {
		t.Errorf("the limit of requests in flight changed to %v", r.proxy.cfg.Limit)
	}
	next.CutAll()
	if body := <-ended; !strings.Contains(body, "gateway_shutdown") {
		t.Errorf("stream ended with %q", body)
	}
	r.idle()
}
