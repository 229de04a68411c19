package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"pointsman.dev/pointsman/internal/llmapi"
)

// endless gives the same event at each read.
type endless struct{ event string }

func (e endless) Read(p []byte) (int, error) { return copy(p, e.event), nil }
func (endless) Close() error                 { return nil }

// TestEventsAllocateNothing holds the pass-through path: reading an event for usage, tokens and completeness beside the
// copy costs no allocation.
func TestEventsAllocateNothing(t *testing.T) {
	r := buildRig(t, []string{"http://127.0.0.1:1"})
	x := r.proxy.begin(httptest.NewRecorder(), httptest.NewRequest("POST", chat, nil))
	defer x.end()
	x.Target, _ = r.dir.Resolve("m")
	x.API.Kind = llmapi.Chat
	if err := x.Pick(x.ctx); err != nil {
		t.Fatal(err)
	}
	x.attach(&http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, ContentLength: -1, Body: endless{delta("word")}})
	buf := make([]byte, copyBufferSize)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := x.answer.Read(buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

// flusher is a ResponseWriter that does nothing.
type flusher struct{ http.ResponseWriter }

func (flusher) FlushError() error { return nil }

// TestFlushAllocations: the flush of an event allocates nothing.
func TestFlushAllocations(t *testing.T) {
	s := &shown{ResponseWriter: flusher{}}
	if n := testing.AllocsPerRun(1000, func() { _ = s.FlushError() }); n != 0 {
		t.Errorf("%v allocations per flush", n)
	}
}
