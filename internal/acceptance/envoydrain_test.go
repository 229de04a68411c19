package acceptance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestEnvoyRestart: while the processor is away requests fail as failure_mode_allow says; before and afterwards none does. In
// FULL_DUPLEX_STREAMED Envoy has given the body away by then, so that those with one fail whatever is allowed.
func TestEnvoyRestart(t *testing.T) {
	for _, m := range []struct {
		open bool
		mode string
		away int
	}{{false, "FULL_DUPLEX_STREAMED", 500}, {true, "FULL_DUPLEX_STREAMED", 500}, {false, "BUFFERED", 500}, {true, "BUFFERED", 200}} {
		t.Run(fmt.Sprintf("failure_mode_allow=%v/%s", m.open, m.mode), func(t *testing.T) {
			envoyPath(t)
			_, urls := fleet(t, 2)
			port := envoyPort(t)
			yaml := fmt.Sprintf("extproc: {listen: \"127.0.0.1:%s\"}\n", port)
			g := gateway(t, list(urls...), "", yaml)
			waitReady(t, g, 2)
			base := envoy(t, urls, "127.0.0.1:"+port, "failure_mode_allow: false", fmt.Sprintf("failure_mode_allow: %v", m.open),
				"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+m.mode)
			c := client(t, 4)
			batch := func(n int) map[int]int {
				var mu sync.Mutex
				codes := map[int]int{}
				parallel(n, 4, func(int) {
					code := 0
					if res, err := askEnvoy(t, c, base+"/v1/chat/completions", wordy(1000)); err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
						code = res.StatusCode
					}
					mu.Lock()
					codes[code]++
					mu.Unlock()
				})
				return codes
			}
			if got := batch(40); got[200] != 40 {
				t.Errorf("before: %v", got)
			}
			g.Close()
			away := batch(20)
			if away[m.away] != 20 {
				t.Errorf("while it is away: %v, want %d only", away, m.away)
			}
			g = gateway(t, list(urls...), "", yaml)
			waitReady(t, g, 2)
			eventually(t, patience, func() string { // Envoy waits before it connects again
				if batch(1)[200] != 1 || status(t, g).InFlight != 0 {
					return "not back"
				}
				return ""
			})
			if got := batch(40); got[200] != 40 {
				t.Errorf("afterwards: %v", got)
			}
		})
	}
}

// TestEnvoyDrain: a stream that is open when the gateway is asked to end reaches its own end.
func TestEnvoyDrain(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	begun, finish := make(chan bool), make(chan bool)
	events := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		begun <- true
		<-finish
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
	servers[0].handle.Store(&events)
	g := gateway(t, list(urls...), "", processor)
	waitReady(t, g, 1)
	base := envoy(t, urls, g.ExtProc())
	answered := make(chan string, 1)
	go func() {
		res, err := askEnvoy(t, client(t, 1), base+"/v1/chat/completions", `{"model":"m","stream":true}`)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		answered <- fmt.Sprint(string(text), err)
	}()
	<-begun
	drained := make(chan int, 1)
	go func() { drained <- g.Drain(context.Background(), 100*time.Millisecond, 20*time.Second) }()
	time.AfterFunc(500*time.Millisecond, func() { finish <- true })
	if text := <-answered; !strings.HasSuffix(text, "data: [DONE]\n\n<nil>") || strings.Contains(text, "error") {
		t.Errorf("the stream ends as %q", text)
	}
	if cut := <-drained; cut != 0 {
		t.Errorf("%d requests were cut", cut)
	}
}
