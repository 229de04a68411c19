package acceptance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
)

// waitingBehindEnvoy is a pool of one server that is busy until h lets it go, an Envoy in front of it, and what two requests are told
// that wait.
func waitingBehindEnvoy(t *testing.T, mode string) (g *app.Gateway, base string, h *held, told chan string) {
	t.Helper()
	envoyPath(t)
	servers, urls := fleet(t, 1)
	h = servers[0].hold(nil)
	g = gateway(t, list(urls...), "    queue: {max: 2}\n    full: {max_num_seqs: 1}\n", processor)
	waitReady(t, g, 1)
	base = envoy(t, urls, g.ExtProc(), "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+mode)
	told = make(chan string, 3)
	go tellEnvoy(t, base, told)
	eventually(t, patience, func() string { return unless(h.seen.Load() == 1, "the first is not there") })
	for range 2 {
		go tellEnvoy(t, base, told)
	}
	waitingAre(t, g, 2)
	return g, base, h, told
}

// tellEnvoy sends a request through Envoy and hands on status, reason and body of the answer.
func tellEnvoy(t *testing.T, base string, told chan<- string) {
	res, err := askEnvoy(t, client(t, 1), base+"/v1/chat/completions", wordy(100))
	if err != nil {
		told <- err.Error()
		return
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	told <- fmt.Sprintf("%d %s %s %s", res.StatusCode, res.Header.Get("x-pointsman-reason"), res.Header.Get("Retry-After"), text)
}

func waitingAre(t *testing.T, g *app.Gateway, n int) {
	t.Helper()
	eventually(t, patience, func() string {
		return unless(status(t, g).Queue.Waiting == n, fmt.Sprintf("%d do not wait", n))
	})
}

// TestEnvoyQueue: behind Envoy, too, who waits gets the place that becomes free, one too many is refused, and a client that leaves
// gives its place in the queue up.
func TestEnvoyQueue(t *testing.T) {
	g, base, h, told := waitingBehindEnvoy(t, "FULL_DUPLEX_STREAMED")
	more := make(chan string, 1)
	tellEnvoy(t, base, more)
	if text := <-more; !strings.HasPrefix(text, "429 queue_full ") || !strings.Contains(text, `"error"`) || strings.HasPrefix(text, "429 queue_full  ") {
		t.Errorf("one too many is told %q", text)
	}
	h.let(3)
	for range 3 {
		if text := <-told; !strings.HasPrefix(text, "200 ") {
			t.Errorf("one that waited is told %q", text)
		}
	}
	go tellEnvoy(t, base, told)
	eventually(t, patience, func() string { return unless(h.seen.Load() == 4, "the fourth is not there") })
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(wordy(100)))
		_, err := client(t, 1).Do(r) //nolint:bodyclose // there is no answer
		left <- err
	}()
	waitingAre(t, g, 1)
	leave()
	<-left
	waitingAre(t, g, 0)
	h.let(1)
	if text := <-told; !strings.HasPrefix(text, "200 ") || h.seen.Load() != 4 {
		t.Errorf("the one that stayed is told %q, the server saw %d requests", text, h.seen.Load())
	}
}

// TestEnvoyDrainWithAQueue: whom a drain has no time for is told so, by an answer that says that nothing has run.
func TestEnvoyDrainWithAQueue(t *testing.T) {
	for _, mode := range []string{"FULL_DUPLEX_STREAMED", "BUFFERED"} {
		t.Run(mode, func(t *testing.T) {
			g, _, h, told := waitingBehindEnvoy(t, mode)
			g.Drain(context.Background(), 0, 300*time.Millisecond)
			notRun := 0
			for range 3 { // the third is the one that the server works on
				text := <-told
				if !strings.HasPrefix(text, "503 shutdown ") {
					t.Errorf("one is told %q", text)
				}
				if strings.Contains(text, "not processed") {
					notRun++
				}
			}
			if notRun != 2 {
				t.Errorf("%d of two that waited are told that nothing has run", notRun)
			}
			if h.seen.Load() != 1 {
				t.Errorf("the server saw %d requests", h.seen.Load())
			}
		})
	}
}
