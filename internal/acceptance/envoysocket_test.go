package acceptance

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestEnvoyWebSocket: a WebSocket passes in both directions where Envoy shows its bytes as they come, and is refused where Envoy would wait
// for its end.
func TestEnvoyWebSocket(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	parrot := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return // a probe of the gateway
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	})
	servers[0].handle.Store(&parrot)
	g := gateway(t, list(urls...), "", processor)
	waitReady(t, g, 1)
	for _, c := range []struct {
		request, response string
		status            string
	}{{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", "101"}, {"STREAMED", "STREAMED", "101"}, {"BUFFERED", "STREAMED", "404"}} {
		t.Run(c.request, func(t *testing.T) {
			base := envoy(t, urls, g.ExtProc(), append(modesOf(c.request, c.response), "codec_type: AUTO", "upgrade_configs: [{upgrade_type: websocket}]")...)
			conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(conn, "GET /v1/realtime?model=m HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
			in := bufio.NewReader(conn)
			head, err := in.ReadString('\n')
			for line := head; err == nil && line != "\r\n"; {
				line, err = in.ReadString('\n')
			}
			if err != nil || !strings.HasPrefix(head, "HTTP/1.1 "+c.status) {
				t.Fatalf("answered %q, %v", head, err)
			}
			for _, frame := range []string{"\x81\x05hello", "\x81\x05again"} {
				if c.status != "101" {
					break
				}
				_, _ = io.WriteString(conn, frame)
				back := make([]byte, len(frame))
				if _, err := io.ReadFull(in, back); err != nil || string(back) != frame {
					t.Errorf("%q came back as %q, %v", frame, back, err)
				}
				if n := status(t, g).InFlight; n != 1 {
					t.Errorf("%d requests are booked", n)
				}
			}
			_ = conn.Close()
			eventually(t, patience, func() string { return unless(status(t, g).InFlight == 0, "still booked") })
		})
	}
}
