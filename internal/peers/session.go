package peers

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// The receiving end: what peers say, booked in the pools.

const (
	maxStreams     = 64
	maxConnections = 128
)

func (x *Exchange) newServer() *grpc.Server {
	creds := insecure.NewCredentials()
	if x.cfg.ServerTLS != nil {
		creds = credentials.NewTLS(x.cfg.ServerTLS)
	}
	s := grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(4), grpc.ConnectionTimeout(patience),
		grpc.MaxHeaderListSize(8<<10), grpc.StatsHandler(meter{x.metrics}), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 2 * patience, Time: 2 * patience, Timeout: patience}))
	wire.RegisterExchangeServer(s, &server{x: x})
	return s
}

// server is the service.
type server struct {
	wire.UnimplementedExchangeServer
	x *Exchange
}

// Tell implements wire.ExchangeServer: one peer, for as long as it talks.
func (s *server) Tell(stream grpc.BidiStreamingServer[wire.Message, wire.Answer]) error {
	err := s.x.hear(stream)
	if err != nil && status.Code(err) != codes.Canceled {
		s.x.metrics.Refused(1)
	}
	return err
}

func (x *Exchange) hear(stream grpc.BidiStreamingServer[wire.Message, wire.Answer]) error {
	h := &hearing{x: x, stream: stream, in: make(chan *wire.Message), failed: make(chan error, 1)}
	go h.receive() // ends with the stream, which ends with the handler
	hello, err := h.next()
	if err != nil {
		return err
	}
	if err = stream.Send(&wire.Answer{Hello: x.self}); err != nil {
		return err
	}
	peer := hello.GetHello()
	if err = greet(peer); err != nil {
		var other *incompatibleError
		if errors.As(err, &other) {
			x.sessions.complain(func() { x.log.Warn("peer of another version is refused", "err", err.Error()) })
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if string(peer.GetInstance()) == string(x.self.GetInstance()) {
		return status.Error(codes.FailedPrecondition, errSelf.Error())
	}
	ses := x.sessions.begin(string(peer.GetInstance()))
	if ses == nil {
		return status.Error(codes.ResourceExhausted, "greeting a peer: there are too many")
	}
	x.retry()
	clean := false
	defer func() { x.sessions.end(ses, clean) }()
	r := newReader(peer.GetHashing() == x.self.GetHashing(), func(name string) *pool.Peer { return ses.peer(x.pool(name)) })
	err = h.talk(r, ses)
	clean = err == nil
	return err
}

// hearing is one stream of a peer.
type hearing struct {
	x      *Exchange
	stream grpc.BidiStreamingServer[wire.Message, wire.Answer]
	in     chan *wire.Message
	failed chan error
}

func (h *hearing) receive() {
	for {
		m, err := h.stream.Recv()
		if err != nil {
			h.failed <- err
			return
		}
		select {
		case h.in <- m:
		case <-h.stream.Context().Done():
			return
		}
	}
}

// next waits for a message, not for ever.
func (h *hearing) next() (*wire.Message, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case m := <-h.in:
		return m, nil
	case err := <-h.failed:
		return nil, err
	case <-late.C:
		return nil, status.Error(codes.DeadlineExceeded, "hearing a peer: it was silent for 5 s")
	}
}

// talk takes batches until the peer says that it ends.
func (h *hearing) talk(r *reader, ses *session) error {
	for {
		m, err := h.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if ses.over() {
			return status.Error(codes.Aborted, "hearing a peer: another stream of it took over")
		}
		if err := r.take(m.GetBatch()); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		h.note(m.GetBatch(), r)
		if err := h.stream.Send(&wire.Answer{Taken: m.GetBatch().GetNumber(), Again: r.again()}); err != nil {
			return err
		}
	}
}

// note counts what a batch held.
func (h *hearing) note(b *wire.Batch, r *reader) {
	for _, p := range b.GetPools() {
		if p.GetStateEnds() {
			h.x.metrics.FullState(true)
		}
	}
	h.x.metrics.Refused(r.refused)
	r.refused = 0
}

// session is the requests of one process, by what its latest stream says.
type session struct {
	instance string

	mu     sync.Mutex
	closed bool
	pools  map[*pool.Pool]*pool.Peer
	later  *time.Timer
}

// peer returns where the requests in p are booked; nil without a pool.
func (s *session) peer(p *pool.Pool) *pool.Peer {
	if p == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	q := s.pools[p]
	if q == nil {
		q = p.NewPeer()
		s.pools[p] = q
	}
	return q
}

func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// forget takes all requests off the books.
func (s *session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.later != nil {
		s.later.Stop()
	}
	for _, q := range s.pools {
		q.Close()
	}
	s.pools = nil
}

// sessions are the processes that are heard, or were until a moment ago.
type sessions struct {
	mu      sync.Mutex
	open    map[string]*session // by instance
	shutOff bool
	said    time.Time
}

// begin starts the session of a process, in place of an earlier one. It is nil when there are too many.
func (s *sessions) begin(instance string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.open[instance]
	if s.shutOff || old == nil && len(s.open) >= maxStreams {
		return nil
	}
	if old != nil {
		old.forget()
	}
	if s.open == nil {
		s.open = map[string]*session{}
	}
	ses := &session{instance: instance, pools: map[*pool.Pool]*pool.Peer{}}
	s.open[instance] = ses
	return ses
}

// end forgets the requests of a session: at once if its peer said that it ends. Otherwise they may well go on at the endpoints,
// and the peer may be back in a moment with all of them.
func (s *sessions) end(ses *session, clean bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[ses.instance] != ses {
		return
	}
	if clean || s.shutOff {
		delete(s.open, ses.instance)
		ses.forget()
		return
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.later = time.AfterFunc(mourning, func() { s.end(ses, true) })
}

// shut forgets everything; no session begins any more.
func (s *sessions) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shutOff = true
	for id, ses := range s.open {
		ses.forget()
		delete(s.open, id)
	}
}

// keep forgets what peers have in pools that are no more.
func (s *sessions) keep(pools []*pool.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.open {
		ses.mu.Lock()
		for p, q := range ses.pools {
			if !slices.Contains(pools, p) {
				q.Close()
				delete(ses.pools, p)
			}
		}
		ses.mu.Unlock()
	}
}

// complain calls f unless it did within the last minute.
func (s *sessions) complain(f func()) {
	s.mu.Lock()
	silent := time.Since(s.said) < sayEvery
	if !silent {
		s.said = time.Now()
	}
	s.mu.Unlock()
	if !silent {
		f()
	}
}

// meter counts the bytes of messages.
type meter struct{ metrics *telemetry.Peers }

// TagRPC implements stats.Handler.
func (meter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (meter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (meter) HandleConn(context.Context, stats.ConnStats) {}

// HandleRPC implements stats.Handler.
func (m meter) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		m.metrics.Bytes(true, s.WireLength)
	case *stats.OutPayload:
		m.metrics.Bytes(false, s.WireLength)
	}
}

// limited bounds how many connections a listener has at once.
func limited(ln net.Listener) net.Listener {
	return &limitedListener{Listener: ln, room: make(chan struct{}, maxConnections)}
}

type limitedListener struct {
	net.Listener
	room chan struct{}
}

// Accept implements net.Listener. A connection beyond the bound is closed at once.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &limitedConn{Conn: c, free: sync.OnceFunc(func() { <-l.room })}, nil
		default:
			_ = c.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.free()
	return c.Conn.Close()
}
