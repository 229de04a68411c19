package acceptance

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// patience is how long a test waits for what is sure to come, however busy the machine is: only what hangs fails by it.
const patience = time.Minute

// receive returns the next value of a channel; it fails the test when there is none.
func receive[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("after %v: %s", patience, what)
	}
	return v
}

// held is a scripted server whose answers to inference wait until the test lets them go.
type held struct {
	seen atomic.Int64 // requests that came
	free chan struct{}
}

// hold makes a server wait with every answer; what it was sent goes to got, unless that is nil.
func (s *scripted) hold(got chan<- string) *held {
	h := &held{free: make(chan struct{}, 1000)}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if got != nil {
			got <- string(body)
		}
		h.seen.Add(1)
		select {
		case <-h.free:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21}}`)
	})
	s.handle.Store(&answer)
	return h
}

// let gives n answers, to those who are there and then to those who come.
func (h *held) let(n int) {
	for range n {
		h.free <- struct{}{}
	}
}
