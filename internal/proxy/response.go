package proxy

import (
	"io"
	"net/http"
	"sync/atomic"

	"pointsman.dev/pointsman/internal/llmapi"
)

// modifyResponse is ReverseProxy's hook on the head of an answer.
func modifyResponse(res *http.Response) error {
	x := exchangeOf(res.Request)
	h := res.Header
	cleanResponse(h, x.booking.Endpoint().Name)
	cleanResponse(res.Trailer, x.booking.Endpoint().Name) // the names; the values come at the end, see finish
	x.unshare(h)
	x.answer.begun, x.answer.status = true, res.StatusCode
	x.rec.Status = res.StatusCode
	if x.p.cfg.DebugHeaders {
		h[headerEndpoint] = []string{x.booking.Endpoint().Name}
		h[headerPick] = []string{x.rec.PickReason}
	}
	if x.answer.stream {
		delete(h, "Content-Length") // it would cut off what may have to be said at the end
	}
	if wouldRetry(res.StatusCode) && !x.answer.refused {
		h[headerNoRetry] = noRetry
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return x.upgrade(res)
	}
	return nil
}

// wouldRetry reports whether the official clients send a request again by themselves after status.
func wouldRetry(status int) bool {
	return status >= 500 || status == http.StatusRequestTimeout || status == http.StatusConflict || status == http.StatusTooManyRequests
}

// upgrade prepares a connection that leaves HTTP.
func (x *exchange) upgrade(res *http.Response) error {
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok || x.api.Kind != llmapi.Realtime {
		return errBroken()
	}
	delete(x.w.Header(), "Connection") // Leave's word is for HTTP
	x.watch.streaming.Store(true)
	x.watch.last.set(max(1, x.now()))
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
}

// Read implements io.Reader.
func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.conn.Read(p)
	if n > 0 {
		c.x.watch.last.set(c.x.now())
		c.bytes.Add(int64(n))
		c.x.booking.FirstToken()
	}
	return n, err
}

// Write implements io.Writer.
func (c *upgradedConn) Write(p []byte) (int, error) {
	n, err := c.conn.Write(p)
	if n > 0 {
		c.x.watch.last.set(c.x.now())
	}
	return n, err
}

// Close implements io.Closer.
func (c *upgradedConn) Close() error { return c.conn.Close() }
