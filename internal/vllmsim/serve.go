package vllmsim

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// What a shutdown looks like from outside, as recorded: moments after the signal.
const (
	sigtermUnhealthy = 28 * time.Millisecond  // /health turns 503 and nothing moves any more
	sigtermClosed    = 420 * time.Millisecond // the port refuses, idle connections are closed
	drainUnhealthy   = 43 * time.Millisecond  // after the drain's end
	drainClosed      = 118 * time.Millisecond
	deadUnhealthy    = 115 * time.Millisecond // after the engine process was killed
	deadStreams      = 140 * time.Millisecond // open answers end with an error
	deadClosed       = 250 * time.Millisecond
	deadExit         = 1550 * time.Millisecond
)

// lifecycle is the state of the listening side.
type lifecycle struct {
	mu       sync.Mutex
	gates    map[*gate]struct{}
	refusing bool
	closed   chan struct{} // the port closes for good
	exit     chan struct{} // the process ends, whatever is open
	once     *sync.Once
	exitOnce *sync.Once
}

func newLifecycle() lifecycle {
	return lifecycle{gates: map[*gate]struct{}{}, closed: make(chan struct{}), exit: make(chan struct{}), once: new(sync.Once), exitOnce: new(sync.Once)}
}

func (l *lifecycle) closePort() { l.once.Do(func() { close(l.closed) }) }

func (l *lifecycle) end() {
	l.closePort()
	l.exitOnce.Do(func() { close(l.exit) })
}

func (l *lifecycle) refuse(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusing = on
	for g := range l.gates {
		g.refuse(on)
	}
}

func (l *lifecycle) add(g *gate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gates[g] = struct{}{}
	g.refuse(l.refusing)
}

func (l *lifecycle) remove(g *gate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gates, g)
}

// Serve answers connections from ln, which it closes, until the server has shut down (Terminate, a killed engine: nil)
// or ctx ends (every connection is cut at once, as by SIGKILL: ctx's error).
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	g := newGate(ln, func() { s.count(func(st *Stats) { st.Connections++ }) })
	s.life.add(g)
	defer s.life.remove(g)
	srv := &http.Server{
		Handler:        s.Handler(),
		IdleTimeout:    s.cfg.KeepAlive,
		MaxHeaderBytes: 16 << 20, // the real parser has no limit
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	served := make(chan error, 1)
	go func() {
		defer close(served)
		served <- srv.Serve(g)
	}()
	defer func() { _ = srv.Close() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		s.stop()
		closeServer(srv, served)
		return ctx.Err()
	case <-s.life.closed:
	}
	return s.linger(ctx, srv, served)
}

// linger closes the port and waits for the open connections, as the real server does, without a limit of its own.
func (s *Server) linger(ctx context.Context, srv *http.Server, served chan error) error {
	leave, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.life.exit:
			cancel()
		case <-leave.Done():
		}
	}()
	err := srv.Shutdown(leave)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = nil // the process has ended
	}
	s.stop()
	closeServer(srv, served)
	return err
}

// closeServer cuts every connection and waits for the accept loop. Nothing is left to do about an error of either.
func closeServer(srv *http.Server, served <-chan error) {
	_ = srv.Close()
	for range served { // until it is closed
	}
}

// stop ends the stepping of the engine for good.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halted = true
	s.pausing.Broadcast()
}

// after runs step under the lock d from now.
func (s *Server) after(d time.Duration, step func()) {
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		step()
		s.pausing.Broadcast()
	})
}

// Terminate does what SIGTERM does to a vLLM server. Without Config.ShutdownTimeout open requests get no further byte and no
// end, /health says 503, the port closes, and Serve returns when the clients have left. With it, running requests may finish
// that long, new ones are refused, /health stays 200 and the port open; what is left then hangs as above.
func (s *Server) Terminate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || s.halted {
		return
	}
	if drain := s.cfg.ShutdownTimeout; drain > 0 {
		s.draining = true
		s.after(drain+drainUnhealthy, func() { s.halted, s.unhealthy = true, true })
		time.AfterFunc(drain+drainClosed, s.life.closePort)
		return
	}
	s.after(sigtermUnhealthy, func() { s.halted, s.unhealthy = true, true })
	time.AfterFunc(sigtermClosed, s.life.closePort)
}

// KillEngine does what a SIGKILL of the engine process does: open answers end with an error after a moment, /health says 503,
// the port closes, the front-end exits.
func (s *Server) KillEngine() {
	s.mu.Lock()
	s.halted = true
	s.mu.Unlock()
	s.after(deadUnhealthy, func() { s.unhealthy = true })
	s.after(deadStreams, func() {
		s.dead = true
		for c := range s.calls {
			c.failed = errEngineDead()
			select {
			case c.notify <- struct{}{}:
			default:
			}
		}
	})
	time.AfterFunc(deadClosed, s.life.closePort)
	time.AfterFunc(deadExit, s.life.end)
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// gate is a listener whose port can be closed and opened again.
type gate struct {
	accepted func()
	network  string
	address  string

	mu     sync.Mutex
	ln     net.Listener // nil while the port is closed
	closed bool
	wake   chan struct{} // closed when ln or closed changes
	shut   bool          // refuse without closing the port: a listener that cannot be opened again
}

func newGate(ln net.Listener, accepted func()) *gate {
	return &gate{ln: ln, network: ln.Addr().Network(), address: ln.Addr().String(), wake: make(chan struct{}), accepted: accepted}
}

func (g *gate) current() (ln net.Listener, shut, closed bool, wake chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ln, g.shut, g.closed, g.wake
}

// Accept waits for a connection while the port is open, and for the port while it is closed.
func (g *gate) Accept() (net.Conn, error) {
	for {
		ln, _, closed, wake := g.current()
		if closed {
			return nil, net.ErrClosed
		}
		if ln == nil {
			<-wake
			continue
		}
		c, err := ln.Accept()
		if now, shut, closed, _ := g.current(); err != nil && now == ln && !closed {
			return nil, err
		} else if err == nil && shut {
			_ = c.Close()
			continue
		}
		if err == nil {
			g.accepted()
			return c, nil
		}
	}
}

// refuse closes the port, or opens it again at the same address.
func (g *gate) refuse(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if g.network != "tcp" {
		g.shut = on
		return
	}
	switch {
	case on && g.ln != nil:
		_ = g.ln.Close()
		g.ln = nil
	case !on && g.ln == nil:
		ln, err := net.Listen(g.network, g.address)
		if err != nil {
			return // the port went to someone else meanwhile: it stays refused
		}
		g.ln = ln
	default:
		return
	}
	close(g.wake)
	g.wake = make(chan struct{})
}

// Close closes the port for good.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	close(g.wake)
	if g.ln == nil {
		return nil
	}
	return g.ln.Close()
}

// Addr is the address that the gate was made with, also while the port is closed.
func (g *gate) Addr() net.Addr {
	if ln, _, _, _ := g.current(); ln != nil {
		return ln.Addr()
	}
	return gateAddr{g.network, g.address}
}

type gateAddr struct{ network, address string }

func (a gateAddr) Network() string { return a.network }
func (a gateAddr) String() string  { return a.address }
