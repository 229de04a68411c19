package loopback

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Pipes is a network in memory with one server: a net.Listener whose connections are the other ends of those that Dial returns. It uses no
// socket, so that hours pass in milliseconds inside a synctest bubble.
type Pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewPipes returns one that listens until Close.
func NewPipes() *Pipes {
	return &Pipes{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for the next connection; its error is net.ErrClosed after Close.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close ends the listening. Connections stay open.
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr is an address of no machine.
func (p *Pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80} }

// Dial connects, whatever the address, once Accept takes the connection. After Close it is refused.
func (p *Pipes) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
