package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pointsman.dev/pointsman/internal/pool"
)

// TestAnswerInOnePieceDecodes: nothing is seen of an answer in one piece until it is whole, yet its prompt does not count as work to come
// for as long. A stream whose first token did not come is still at its prompt.
func TestAnswerInOnePieceDecodes(t *testing.T) {
	open := make(chan struct{})
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		<-open
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, okJSON)
	})
	release := sync.OnceFunc(func() { close(open) })
	r := newRig(t, []string{ep.URL})
	t.Cleanup(release) // before the servers close
	for _, body := range []string{chatBody, streamBody} {
		go func() {
			if res, err := r.server.Client().Post(r.server.URL+chat, "application/json", strings.NewReader(body)); err == nil {
				_, _ = read(res)
			}
		}()
	}
	waitFor(t, "both are at the endpoint", func() bool { return ep.served.Load() == 2 })
	report := pool.EmptyReport()
	report.Running, report.Waiting, report.WaitingCapacity, report.KVUsage = 2, 0, 0, 0.1
	waitFor(t, "one decodes", func() bool {
		r.pool.Report(ep.URL, report)
		return r.pool.Status().Endpoints[0].Decoding > 0
	})
	for range 50 {
		r.pool.Report(ep.URL, report)
	}
	if n := r.pool.Status().Endpoints[0].Decoding; n != 1 {
		t.Errorf("%d decode", n)
	}
	release()
	r.idle()
}
