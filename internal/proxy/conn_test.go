package proxy

import (
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"runtime"
	"testing"
	"time"
)

// tcpPair returns both ends of a loopback connection.
func tcpPair(t *testing.T) (client *upstreamConn, server *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client, server = &upstreamConn{Conn: c}, s.(*net.TCPConn)
	t.Cleanup(func() { client.Close(); server.Close() })
	// A first exchange, so that the counters do not start at zero.
	if _, err := client.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if _, err := server.Read(buf); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(buf); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func use(c *upstreamConn, reused bool) *connUse {
	var u connUse
	u.begin(httptrace.GotConnInfo{Conn: c, Reused: reused})
	return &u
}

// failure writes a request and returns what reading the answer gives.
func failure(t *testing.T, c *upstreamConn) error {
	t.Helper()
	if _, err := c.Write([]byte("second request")); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 16))
	if err == nil {
		t.Fatal("reading a broken connection gave bytes")
	}
	return err
}

// TestStaleConnection tells an idle connection that the endpoint had closed, whose request may be sent again, from one
// on which the request may have been read.
func TestStaleConnection(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the proof reads Linux's send queue")
	}
	t.Run("closed before the request came", func(t *testing.T) {
		c, s := tcpPair(t)
		u := use(c, true)
		s.Close()
		if err := failure(t, c); !u.stale(err) {
			t.Errorf("not stale: %v", err)
		}
	})
	t.Run("the same on a new connection", func(t *testing.T) {
		c, s := tcpPair(t)
		u := use(c, false)
		s.Close()
		if err := failure(t, c); u.stale(err) {
			t.Errorf("stale: %v", err)
		}
	})
	t.Run("read, then closed", func(t *testing.T) {
		c, s := tcpPair(t)
		u := use(c, true)
		go func() {
			_, _ = s.Read(make([]byte, 64))
			s.Close()
		}()
		if err := failure(t, c); u.stale(err) || !errors.Is(err, io.EOF) {
			t.Errorf("stale: %v", err)
		}
		if u.unwritten() {
			t.Error("counts as unwritten")
		}
	})
	t.Run("received, not read, then reset", func(t *testing.T) {
		c, s := tcpPair(t)
		u := use(c, true)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(s, one); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("rest")); err != nil {
			t.Fatal(err)
		}
		s.SetLinger(0)
		s.Close()
		_, err := c.Read(one)
		if err == nil || u.stale(err) {
			t.Errorf("stale: %v", err)
		}
	})
	t.Run("broke after a first byte of the answer", func(t *testing.T) {
		c, s := tcpPair(t)
		u := use(c, true)
		if _, err := s.Write([]byte("H")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if err := failure(t, c); u.stale(err) {
			t.Errorf("stale: %v", err)
		}
	})
	t.Run("nothing written", func(t *testing.T) {
		c, s := tcpPair(t)
		u := use(c, true)
		s.Close()
		if _, err := c.Read(make([]byte, 1)); !u.stale(err) || !u.unwritten() {
			t.Errorf("not stale: %v", err)
		}
	})
}

// TestStaleWithoutProof judges by time where the kernel says nothing.
func TestStaleWithoutProof(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	c := &upstreamConn{Conn: a}
	u := use(c, true)
	go func() {
		_, _ = io.ReadFull(b, make([]byte, 3))
		b.Close()
	}()
	if _, err := c.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	if !u.stale(err) {
		t.Errorf("closed at once: not stale: %v", err)
	}
	u.at = time.Now().Add(-2 * staleWindow)
	if u.stale(err) {
		t.Errorf("closed after a while: stale: %v", err)
	}
}
