package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// upstreamConn counts what went through a connection to an endpoint, so that after a failure it can be told whether the
// endpoint can have seen any of the request.
//
// It has no CloseWrite on purpose: a half-closed connection counts as a client that left on vLLM.
type upstreamConn struct {
	net.Conn
	buffers       *sync.Pool // *[connBuffer]byte, for ReadFrom
	read, written atomic.Int64
	asked         atomic.Int64 // read when the request's first byte was about to be written; -1: it was not
	writeFailed   atomic.Bool  // some bytes of the last request never left us
	peerClosed    atomic.Bool  // reading ended by the peer's FIN
	unacked       atomic.Int64 // bytes that the peer had not acknowledged when the connection failed, plus one; 0: not known
}

func (c *upstreamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.read.Add(int64(n))
	}
	if err != nil {
		c.noteQueue()
		if closedByPeer(err) {
			c.peerClosed.Store(true)
		}
	}
	return n, err
}

func (c *upstreamConn) Write(p []byte) (int, error) {
	if c.asked.Load() < 0 {
		c.asked.Store(c.read.Load())
	}
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.written.Add(int64(n))
	}
	if err != nil {
		c.noteQueue()
		c.writeFailed.Store(true)
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom: the transport sends what does not fit into its own buffer this way. Without it each
// such request would allocate a buffer.
func (c *upstreamConn) ReadFrom(r io.Reader) (int64, error) {
	buf := c.buffers.Get().(*[connBuffer]byte)
	defer c.buffers.Put(buf)
	return io.CopyBuffer(writerOnly{c}, r, buf[:])
}

// writerOnly hides ReadFrom, lest the copy call it again.
type writerOnly struct{ io.Writer }

// noteQueue remembers the first answer only: once the transport has closed the socket there is none.
func (c *upstreamConn) noteQueue() {
	if out, ok := sendQueue(c.Conn); ok {
		c.unacked.CompareAndSwap(0, out+1)
	}
}

// connUse is one request's use of one connection.
type connUse struct {
	conn          *upstreamConn
	read, written int64 // counters of conn when this use began
	reused, got   bool
	tls           bool      // what is written includes the alert at the end: a failed write proves nothing
	at            time.Time // when the connection was handed over
}

// begin is the GotConn hook of the transport.
func (u *connUse) begin(info httptrace.GotConnInfo) {
	u.got, u.reused, u.at = true, info.Reused, time.Now()
	c := info.Conn
	if t, ok := c.(*tls.Conn); ok {
		c, u.tls = t.NetConn(), true
	}
	u.conn, _ = c.(*upstreamConn)
	if u.conn != nil {
		u.read, u.written = u.conn.read.Load(), u.conn.written.Load()
		u.conn.asked.Store(-1)
	}
}

// unasked reports whether the answer that was got on a connection had come before the request was written: an endpoint sends more
// than it is asked for. net/http closes such a connection, but may have handed it to the next request already, whose answer
// this would be. What comes at the very moment of the request cannot be told.
func (u *connUse) unasked() bool {
	return u.conn != nil && u.conn.read.Load() == u.conn.asked.Load()
}

// staleWindow is how soon after being handed over a reused connection must break to count as one that the endpoint had
// closed while it was idle, where the kernel cannot tell. It covers a round trip inside a cluster.
const staleWindow = 100 * time.Millisecond

// stale reports whether err only means that the endpoint had closed this idle connection before the request came: the
// request cannot have been executed there and may be sent again.
//
// The sure signs: the transport says so; some of the request's bytes never left us; or the peer's FIN acknowledged no
// byte of it. An endpoint that closed before the request arrived answers the request's bytes with a reset and never
// acknowledges them; one that read the request and then closed acknowledges it by the FIN at the latest. A bare reset
// proves nothing: it may overtake the acknowledgement of what was read.
func (u *connUse) stale(err error) bool {
	if !u.got || !u.reused {
		return false
	}
	if err.Error() == "http: server closed idle connection" { // net/http does not export it
		return true
	}
	if u.conn == nil || u.conn.read.Load() != u.read || !broken(err) {
		return false
	}
	if u.unwritten() || u.conn.writeFailed.Load() && !u.tls {
		return true
	}
	if !u.conn.peerClosed.Load() {
		return false
	}
	if unacked := u.conn.unacked.Load(); unacked > 0 {
		return unacked-1 >= u.conn.written.Load()-u.written
	}
	return time.Since(u.at) < staleWindow
}

// unwritten reports whether nothing of the request left us.
func (u *connUse) unwritten() bool {
	return !u.got || u.conn != nil && u.conn.written.Load() == u.written
}

// broken reports whether err is about the connection, not about the request or the answer's form.
func broken(err error) bool {
	return closedByPeer(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

// closedByPeer tells an orderly close from a reset. EPIPE is what a read gives when the reset answers bytes that were
// sent after the peer's FIN.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE)
}
