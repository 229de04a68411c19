package proxy

import (
	"io"
	"net/http"
	"sync/atomic"

	"pointsman.dev/pointsman/internal/llmapi"
)

// upgrade prepares a connection that leaves HTTP.
func (x *exchange) upgrade(res *http.Response) error {
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok || x.API.Kind != llmapi.Realtime {
		return errBroken()
	}
	delete(x.w.Header(), "Connection") // Leave's word is for HTTP
	x.watch.streaming.Store(true)
	x.watch.last.set(max(1, x.Now()))
	x.answer.socket = &upgradedConn{conn: conn, x: x}
	res.Body = x.answer.socket
	x.commit()
	return nil
}

// upgradedConn is an endpoint's side of a WebSocket. It offers no CloseWrite: ReverseProxy would half-close the connection
// when the client does, and engines take that for a disconnect while answers are still to come.
type upgradedConn struct {
	conn  io.ReadWriteCloser
	x     *exchange
	bytes atomic.Int64 // from the endpoint; its reader may outlast the handler by a moment

	frames frames // of its reader
	spoke  bool   // something came
	told   bool   // the close frame went out
}

// Read implements io.Reader. When we end the connection ourselves it gives the client a close frame that says why, unless the
// endpoint's last frame is not whole.
func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.conn.Read(p)
	if n > 0 {
		c.frames.pass(p[:n])
		c.x.watch.last.set(c.x.Now())
		c.bytes.Add(int64(n))
		if !c.spoke {
			c.spoke = true
			c.x.Booking.FirstToken()
		}
		return n, err
	}
	if why := c.x.watch.cut.Load(); err != nil && why != nil && !c.told && c.frames.between() {
		c.told = true
		return copy(p, closeFrame(why.code)), nil
	}
	return n, err
}

// Write implements io.Writer.
func (c *upgradedConn) Write(p []byte) (int, error) {
	n, err := c.conn.Write(p)
	if n > 0 {
		c.x.watch.last.set(c.x.Now())
	}
	return n, err
}

// Close implements io.Closer.
func (c *upgradedConn) Close() error { return c.conn.Close() }

// frames follows the frames of one direction of a WebSocket (RFC 6455, 5.2).
type frames struct {
	head [14]byte // of the frame that begins
	n    int      // bytes of it so far
	left uint64   // bytes of the payload that are to come
}

// between reports whether no frame is open.
func (f *frames) between() bool { return f.n == 0 && f.left == 0 }

// pass follows the next bytes.
func (f *frames) pass(p []byte) {
	for len(p) > 0 {
		if f.left > 0 {
			k := min(f.left, uint64(len(p)))
			f.left -= k
			p = p[k:]
			continue
		}
		f.head[f.n] = p[0]
		f.n++
		p = p[1:]
		if length, size := f.size(); f.n >= 2 && f.n == size {
			f.n = 0
			f.left = uint64(f.head[1] & 0x7f)
			if length > 0 {
				f.left = 0
				for _, b := range f.head[2 : 2+length] {
					f.left = f.left<<8 | uint64(b)
				}
			}
		}
	}
}

// size returns how many bytes of the head are an extended length, and how many there are in all.
func (f *frames) size() (length, size int) {
	switch f.head[1] & 0x7f {
	case 126:
		length = 2
	case 127:
		length = 8
	}
	size = 2 + length
	if f.head[1]&0x80 != 0 { // a mask, which servers do not use
		size += 4
	}
	return length, size
}

// closeFrame is the close of a server that goes away, with a reason of up to 123 bytes.
func closeFrame(reason string) []byte {
	reason = reason[:min(len(reason), 123)]
	return append([]byte{0x88, byte(2 + len(reason)), 1001 >> 8, 1001 & 0xff}, reason...)
}
