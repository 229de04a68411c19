package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// stepper is an endpoint that sends one event each time it is told to, without allocating. step 0 ends the stream.
func stepper(t *testing.T, event []byte, step chan int) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for n := range step {
			if n == 0 {
				end := finishStop + doneEvent
				fmt.Fprintf(conn, "%x\r\n%s\r\n0\r\n\r\n", len(end), end)
				return
			}
			if _, err := conn.Write(event); err != nil {
				t.Error(err)
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// TestStreamsAllocatePerRequestOnly: a stream through the whole path, sockets and net/http included, allocates for its
// request and its end, and nothing for an event more. Each event makes the way alone. The one exception is net/http's: it
// boxes the size of a chunk, 8 bytes, when that is 256 or more.
func TestStreamsAllocatePerRequestOnly(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	for words, budget := range map[int]float64{20: 0, 50: 1} {
		t.Run(fmt.Sprintf("%d_words", words), func(t *testing.T) { allocationsPerEvent(t, delta(strings.Repeat("word ", words)), budget) })
	}
}

func allocationsPerEvent(t *testing.T, text string, budget float64) {
	step := make(chan int)
	ep := stepper(t, fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text), step)
	r := newRig(t, []string{ep.URL})
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chat, len(streamBody), streamBody)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", res, err)
	}
	buf := make([]byte, 8<<10)
	send := func(n int) {
		for range n {
			step <- 1
			for got := 0; got < len(text); {
				k, err := res.Body.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				got += k
			}
		}
	}
	send(100)
	var before, after runtime.MemStats
	const n = 2000
	runtime.ReadMemStats(&before)
	send(n)
	runtime.ReadMemStats(&after)
	if each := float64(after.Mallocs-before.Mallocs)/n - budget; each > 0.05 { // others of this process work too
		t.Errorf("%.2f allocations per event of %d bytes more than %v", each, len(text), budget)
	}
	step <- 0
	if rest, err := io.ReadAll(res.Body); err != nil || !bytes.HasSuffix(rest, []byte(doneEvent)) {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	r.idle()
}
