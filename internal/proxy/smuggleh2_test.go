package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
)

// The few frames of HTTP/2 (RFC 9113, 6) that a request needs.
const (
	frameData     = 0
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	frameGoAway   = 7

	endStream  = 1
	endHeaders = 4
)

func frame(kind, flags byte, id uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, id), payload...)
}

// literal is a header that is not compressed (RFC 7541, 6.2.2): any bytes can be put into it.
func literal(name, value string) []byte {
	b := []byte{0}
	for _, s := range []string{name, value} {
		if len(s) < 127 {
			b = append(b, byte(len(s)))
		} else {
			b = append(b, 127, byte((len(s)-127)%128|128), byte((len(s)-127)/128))
		}
		b = append(b, s...)
	}
	return b
}

// TestSmugglingByHTTP2: HTTP/2 says by its frames where a request ends and carries any bytes in its headers. Nothing of that may
// become another request, or another header, on the HTTP/1.1 side.
func TestSmugglingByHTTP2(t *testing.T) {
	_, url := startSim(t)
	y := newRelay(t, url)
	r := newRig(t, []string{y.url})
	n := fmt.Sprint(len(chatBody))
	type h = [2]string
	good := []h{{":method", "POST"}, {":scheme", "http"}, {":path", chat}, {":authority", "gw"}, {"content-type", "application/json"}, {"x-request-id", "r1"}}
	with := func(more ...h) []h { return append(slices.Clone(good), more...) }
	instead := func(name, value string) []h {
		list := slices.Clone(good)
		for i := range list {
			if list[i][0] == name {
				list[i][1] = value
			}
		}
		return list
	}
	inject := " HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\n\r\n" + evil
	for _, c := range []struct {
		name    string
		headers []h
		body    string
		seen    int // requests that the endpoint sees at most; 1 must be whole
	}{
		{"plain", good, chatBody, 1},
		{"with its length", with(h{"content-length", n}), chatBody, 1},
		{"another request behind the length", with(h{"content-length", n}), chatBody + evil, 0},
		{"a length of 0", with(h{"content-length", "0"}), chatBody, 0},
		{"too short", with(h{"content-length", "5000"}), chatBody, 0},
		{"two lengths", with(h{"content-length", n}, h{"content-length", "5"}), chatBody, 1}, // its frames say where it ends
		{"an odd length", with(h{"content-length", "+" + n}), chatBody, 0},
		{"another request in the body", good, chatBody + evil, 0},
		{"chunked", with(h{"transfer-encoding", "chunked"}), "0\r\n\r\n" + evil, 0},
		{"chunked, and well", with(h{"transfer-encoding", "chunked"}), chatBody, 1},
		{"connection", with(h{"connection", "content-length"}), chatBody, 1},
		{"upgrade", with(h{"upgrade", "websocket"}), chatBody, 1},
		{"te", with(h{"te", "trailers"}), chatBody, 1},
		{"line break in a value", with(h{"x-a", "b\r\nTransfer-Encoding: chunked"}), chatBody, 0},
		{"LF in a value", with(h{"x-a", "b\nX-Data-Parallel-Rank: 1"}), chatBody, 0},
		{"NUL in a value", with(h{"x-a", "b\x00"}), chatBody, 0},
		{"line break in a name", with(h{"x-a: b\r\nx-b", "c"}), chatBody, 0},
		{"colon in a name", with(h{"x-data-parallel-rank: 1\r\nx", "1"}), chatBody, 0},
		{"capitals in a name", with(h{"X-Data-Parallel-Rank", "1"}), chatBody, 0},
		{"empty name", with(h{"", "1"}), chatBody, 0},
		{"request in the path", instead(":path", chat+inject), chatBody, 0},
		{"space in the path", instead(":path", chat+" x"), chatBody, 0},
		{"whole URL as the path", instead(":path", "http://other"+chat), chatBody, 1},
		{"request in the method", instead(":method", "POST "+chat+inject), chatBody, 0},
		{"line break in the authority", instead(":authority", "gw\r\nX-A: b"), chatBody, 0},
		{"request in the scheme", instead(":scheme", "http://gw/"+inject), chatBody, 1},
		{"two paths", with(h{":path", "/sleep"}), chatBody, 0},
		{"another host", with(h{"host", "other"}), chatBody, 1},
		{"line break in the id", instead("x-request-id", "r1\r\nX-A: b"), chatBody, 0},
	} {
		var block []byte
		for _, f := range c.headers {
			block = append(block, literal(f[0], f[1])...)
		}
		send := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(frameSettings, 0, 0, nil)...)
		send = append(send, frame(frameHeaders, endHeaders, 1, block)...)
		send = append(send, frame(frameData, endStream, 1, []byte(c.body))...)
		conn, br := r.raw(string(send))
		if err := answered(br); err != nil {
			t.Errorf("%s: no answer: %v", c.name, err)
		}
		conn.Close()
		seen := y.heads(t)
		if len(seen) > c.seen {
			t.Errorf("%s: the endpoint saw %d requests, want at most %d", c.name, len(seen), c.seen)
		}
		for _, got := range seen {
			if got["x-request-id"][0] != "r1" || got["content-length"][0] != n || got["x-a"] != nil || got["x-data-parallel-rank"] != nil {
				t.Errorf("%s: the endpoint saw %v", c.name, got)
			}
		}
	}
	r.idle()
}

// answered reads frames until the first stream, or the connection, has ended.
func answered(r io.Reader) error {
	for {
		var head [9]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			return nil // closed
		}
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, r, size); err != nil {
			return err
		}
		kind, flags, id := head[3], head[4], binary.BigEndian.Uint32(head[5:])
		if kind == frameGoAway || id == 1 && (kind == frameReset || kind <= frameHeaders && flags&endStream != 0) {
			return nil
		}
	}
}
