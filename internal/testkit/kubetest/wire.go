package kubetest

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// Wire is what is between a client and a server: a load balancer or a firewall that can lose its memory. Its methods may be
// called from any goroutine.
type Wire struct {
	// URL is where a client has to connect to instead of the server.
	URL string

	target    string
	swallowed atomic.Int64
	silent    atomic.Bool
	mu        sync.Mutex
	open      []net.Conn // both ends of each connection
}

// Wire puts a wire before the server. It ends with the test.
func (s *Server) Wire() *Wire {
	s.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(s.t, err)
	w := &Wire{URL: "https://" + ln.Addr().String(), target: strings.TrimPrefix(s.URL, "https://")}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			done.Go(func() { w.carry(c) })
		}
	})
	s.t.Cleanup(func() {
		_ = ln.Close()
		w.mu.Lock()
		for _, c := range w.open {
			_ = c.Close()
		}
		w.open = nil
		w.mu.Unlock()
		done.Wait()
	})
	return w
}

// Swallow makes the wire take every byte and carry none, without a word to either end; false makes connections that begin
// from now on work. One that lost a byte stays as it is.
func (w *Wire) Swallow(on bool) { w.silent.Store(on) }

// Swallowed is how many bytes were lost so far.
func (w *Wire) Swallowed() int64 { return w.swallowed.Load() }

// carry copies between a client and the server until both ends are closed.
func (w *Wire) carry(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	w.mu.Lock()
	w.open = append(w.open, client, server)
	w.mu.Unlock()
	var dead atomic.Bool
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(&lossy{w, way[1], &dead}, way[0]) // how it ended does not matter
			if !dead.Load() {
				_ = way[1].Close()
			}
		})
	}
	both.Wait()
}

// lossy is one direction of a connection.
type lossy struct {
	*Wire
	to   net.Conn
	dead *atomic.Bool // it lost a byte, in either direction
}

// Write implements io.Writer.
func (l *lossy) Write(p []byte) (int, error) {
	if l.silent.Load() {
		l.dead.Store(true)
	}
	if l.dead.Load() {
		l.swallowed.Add(int64(len(p)))
		return len(p), nil
	}
	return l.to.Write(p)
}

// Freeze stops the server where it is: its connections stay open and it says nothing, until Thaw.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	must(s.t, s.process.Process.Signal(sig))
}

// Heal makes HTTP/2 connections of client-go that are made during this test give up a peer which says nothing after two
// seconds instead of 45.
func Heal(t testing.TB) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
}
