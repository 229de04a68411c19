package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestKeepAliveOnTheWire: many streams at once over real sockets and both protocols whose events and keep-alives come at the same
// moments.
func TestKeepAliveOnTheWire(t *testing.T) {
	const every = 200 * time.Millisecond
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		answerStream(w)
		for range 4 {
			pause(every)
			answerStream(w, delta("a"))
		}
		pause(6 * every)
		answerStream(w, finishStop, doneEvent)
	})
	want := strings.Repeat(delta("a"), 4) + finishStop + doneEvent
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.KeepAlive = every })
	for proto, client := range r.clients() {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				res, err := client.Post(r.server.URL+chat, "application/json", strings.NewReader(streamBody))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				got, err := io.ReadAll(res.Body)
				if n := strings.Count(string(got), string(commentLine)); err != nil || n == 0 || strings.ReplaceAll(string(got), string(commentLine), "") != want {
					t.Errorf("%s: %v, %d keep-alives, %q", proto, err, n, got)
				}
			})
		}
		all.Wait()
	}
	r.idle()
}
