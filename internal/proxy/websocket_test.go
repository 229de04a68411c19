package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// TestWebSocketCut: when we end a WebSocket its client is told why, behind whole frames only.
func TestWebSocketCut(t *testing.T) {
	long := append([]byte{0x82, 126, 0x01, 0x00}, make([]byte, 256)...)
	huge := append([]byte{0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 65536)...)
	masked := []byte{0x81, 0x82, 1, 2, 3, 4, 'h', 'i'}
	text := []byte("\x81\x02hi")
	whole := bytes.Join([][]byte{text, long, {0x89, 0}, huge, masked, text}, nil)
	bye := append([]byte{0x88, 18, 3, 233}, "gateway_shutdown"...)
	for name, c := range map[string]struct {
		sent []byte
		told bool
	}{
		"nothing": {nil, true}, "whole frames": {whole, true}, "half a payload": {whole[:len(whole)-1], false}, "half a head": {append(bytes.Clone(whole), 0x81), false},
		"half a length": {append(bytes.Clone(whole), 0x81, 127, 0, 0), false}, "an empty frame": {[]byte{0x8a, 0}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
					conn, rw, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					_ = rw.Flush()
					for i := range c.sent { // in every piece
						_, _ = conn.Write(c.sent[i : i+1])
						if i > 2000 {
							_, _ = conn.Write(c.sent[i+1:])
							break
						}
					}
					_, _ = io.Copy(io.Discard, rw)
					conn.Close()
				}, func(*Config) {})
				res := dialWebSocket(t, b)
				time.AfterFunc(time.Minute, b.proxy.CutAll)
				got, _ := io.ReadAll(res.Body)
				want := c.sent
				if c.told {
					want = append(bytes.Clone(c.sent), bye...)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("got %d bytes that end with %q, want %d", len(got), got[max(0, len(got)-30):], len(want))
				}
				<-b.records
				b.idle()
				res.Body.Close()
				b.stop()
				time.Sleep(time.Minute)
			})
		})
	}
}

// dialWebSocket opens a connection to /v1/realtime.
func dialWebSocket(t *testing.T, b *bubble) *http.Response {
	t.Helper()
	req, err := http.NewRequest("GET", "http://gw/v1/realtime?model=m", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	res, err := b.client.Do(req)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v", res, err)
	}
	return res
}

// TestWebSocketIdle: bytes in either direction keep a WebSocket, silence in both for the idle limit ends it, and so do the whole
// limit and the end of a drain, on both sides.
func TestWebSocketIdle(t *testing.T) {
	talk := func(n int, every time.Duration) func(io.Writer) {
		return func(w io.Writer) {
			for range n {
				time.Sleep(every)
				if _, err := w.Write([]byte("x")); err != nil {
					return
				}
			}
		}
	}
	mute := func(io.Writer) {}
	for _, c := range []struct {
		name           string
		client, server func(io.Writer)
		after          time.Duration // CutAll
		lasts          time.Duration
		outcome        string
	}{
		{"silence", mute, mute, 0, 5 * time.Minute, "timeout"},
		{"the client speaks", talk(3, 4*time.Minute), mute, 0, 17 * time.Minute, "timeout"},
		{"the server speaks", mute, talk(2, 4*time.Minute), 0, 13 * time.Minute, "timeout"},
		{"both speak on", talk(100, 2*time.Minute), talk(100, 3*time.Minute), 0, time.Hour, "timeout"},
		{"the end of a drain", mute, mute, time.Minute, time.Minute, "cut"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gone := make(chan time.Duration, 1)
				begun := time.Now()
				b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
					conn, rw, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					_ = rw.Flush()
					go c.server(conn)
					_, _ = io.Copy(io.Discard, rw)
					gone <- time.Since(begun)
					conn.Close()
				}, func(cfg *Config) { cfg.Idle, cfg.KeepAlive = 5*time.Minute, 15*time.Second })
				res := dialWebSocket(t, b)
				if c.after > 0 {
					time.AfterFunc(c.after, b.proxy.CutAll)
				}
				go c.client(res.Body.(io.Writer))
				_, _ = io.Copy(io.Discard, bufio.NewReader(res.Body))
				ended := time.Since(begun)
				if left := <-gone; ended < c.lasts || ended > c.lasts+2*time.Second || left > c.lasts+2*time.Second {
					t.Errorf("ended after %v for the client and %v for the endpoint, want %v", ended, left, c.lasts)
				}
				if rec := <-b.records; rec["outcome"] != c.outcome || rec["status"] != "101" {
					t.Errorf("record %v", rec)
				}
				b.idle()
				res.Body.Close()
				b.stop()
				time.Sleep(time.Hour) // who still speaks finds out
			})
		})
	}
}
