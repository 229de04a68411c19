package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/telemetry"
)

const (
	queued      = 40 // batches that may wait for a slow peer: 2 s
	retryFirst  = 250 * time.Millisecond
	retryMost   = 5 * time.Second
	retryRarely = time.Minute // a peer of another version
)

var (
	errSelf   = errors.New("greeting a peer: it is this replica itself")
	errSilent = errors.New("telling a peer: it confirmed nothing for 5 s")
)

// link is one address that is told the picks of this replica.
type link struct {
	x       *Exchange
	address string
	stop    context.CancelFunc
	queue   chan *batch
	again   chan struct{} // a peer called: it may be this one, so that there is no use in waiting
	live    atomic.Bool   // there is a stream: batches are of use
	behind  atomic.Bool   // a full state has to follow

	mu     sync.Mutex
	peer   telemetry.Peer
	self   bool
	said   time.Time // when the log was told last that it does not answer,
	why    string    // and why
	unsaid int
}

func newLink(x *Exchange, address string) *link {
	return &link{x: x, address: address, queue: make(chan *batch, queued), again: make(chan struct{}, 1), peer: telemetry.Peer{Address: address, State: telemetry.PeerConnecting}}
}

// offer hands over a batch, which may be nil; lost says that picks are missing before it. It never waits.
func (l *link) offer(b *batch, lost bool) {
	if !l.live.Load() {
		return
	}
	if lost {
		l.behind.Store(true)
	}
	if b == nil {
		return
	}
	select {
	case l.queue <- b:
	default:
		l.behind.Store(true)
		l.x.metrics.Dropped()
	}
}

// run keeps a stream to the address until ctx ends.
func (l *link) run(ctx context.Context) {
	wait := retryFirst
	for {
		start := time.Now()
		err := l.converse(ctx)
		l.live.Store(false)
		var other *incompatibleError
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errSelf):
			l.mu.Lock()
			l.self = true
			l.mu.Unlock()
			<-ctx.Done() // an address that leads here does so for as long as this process lives
			return
		case errors.As(err, &other):
			l.lost(err, telemetry.PeerIncompatible)
			wait = retryRarely
		default:
			l.lost(err, telemetry.PeerConnecting)
			if wait = min(2*wait, retryMost); time.Since(start) > 2*patience {
				wait = retryFirst
			}
		}
		select {
		case <-time.After(wait):
		case <-l.again:
			wait = retryFirst
		case <-ctx.Done():
			return
		}
	}
}

// retry makes every link that waits try again now.
func (x *Exchange) retry() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.links {
		if l.live.Load() {
			continue
		}
		select {
		case l.again <- struct{}{}:
		default:
		}
	}
}

// lost notes that there is no stream, and says so in the log: at once when there was one or the reason is another version, soon when
// the reason is another one than was said, and once a minute while it lasts.
func (l *link) lost(err error, state string) {
	l.mu.Lock()
	changed := l.peer.State != state
	l.peer.State, l.peer.Lag = state, 0
	why := reason(err)
	l.peer.Error = why
	last := time.Since(l.said)
	silent := !changed && last < sayEvery && (why == l.why || last < sayOther)
	n := l.unsaid
	if silent {
		l.unsaid++
	} else {
		l.said, l.why, l.unsaid = time.Now(), why, 0
	}
	l.mu.Unlock()
	if !silent && (changed || state != telemetry.PeerIncompatible) {
		l.x.log.Warn("peer is not told of picks", "peer", l.address, "state", state, "err", why, "suppressed", n)
	}
}

// reason is an error without what gRPC says around it.
func reason(err error) string {
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	why := s.Message()
	if _, inner, ok := strings.Cut(why, "desc = "); ok {
		if text, err := strconv.Unquote(inner); err == nil {
			why = text
		}
	}
	return why
}

// status returns what is known of the peer; false if it is this replica.
func (l *link) status() (telemetry.Peer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peer, !l.self
}

// converse makes a stream and tells it everything, until it breaks or ctx ends.
func (l *link) converse(ctx context.Context) error {
	creds, err := l.x.credentials(l.address)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+l.address, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithStatsHandler(meter{l.x.metrics}), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(fullMessage)))
	if err != nil {
		return fmt.Errorf("reaching a peer: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// The stream outlives ctx a little, so that the peer hears that this is the end.
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(300*time.Millisecond, func() { cancel(nil) }) })()
	silence := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silence.Stop()

	stream, err := wire.NewExchangeClient(conn).Tell(own)
	if err == nil {
		err = stream.Send(&wire.Message{Hello: l.x.self})
	}
	var hello *wire.Answer
	if err == nil {
		hello, err = stream.Recv()
	}
	if err != nil {
		return cause(own, err)
	}
	if string(hello.GetHello().GetInstance()) == string(l.x.self.GetInstance()) {
		return errSelf
	}
	if err := greet(hello.GetHello()); err != nil {
		return err
	}
	t := &talk{link: l, stream: stream, silence: silence, heard: make(chan error, 1)}
	l.x.done.Go(t.listen)
	return cause(own, t.run(ctx, hello.GetHello()))
}

// cause returns why a stream ended.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); errors.Is(c, errSilent) {
		return c
	}
	return err
}

// talk is one stream.
type talk struct {
	*link
	stream  grpc.BidiStreamingClient[wire.Message, wire.Answer]
	silence *time.Timer
	heard   chan error // why nothing more is heard

	sent   uint64 // number of the last batch
	sentAt time.Time
	mu     sync.Mutex
	under  []underway
}

// underway is a batch that was not confirmed.
type underway struct {
	number uint64
	oldest time.Time
}

// maxUnderway bounds what is remembered of them.
const maxUnderway = 1 << 12

// run tells the peer a full state and then what happens.
func (t *talk) run(ctx context.Context, hello *wire.Hello) error {
	oldest := time.Time{} // of what is being written
	w := newWriter(func(parts []*wire.Pool) error { return t.send(parts, oldest) })
	t.behind.Store(true)
	t.live.Store(true)
	t.connected(hello)
	beat := time.NewTicker(heartbeat / 2)
	defer beat.Stop()
	for {
		if t.behind.Swap(false) {
			oldest = time.Time{}
			if err := t.state(w); err != nil {
				return err
			}
		}
		select {
		case b := <-t.queue:
			oldest = b.oldest
			if err := t.tell(w, b); err != nil {
				return err
			}
		case <-beat.C:
			if time.Since(t.sentAt) >= heartbeat/2 {
				if err := t.send(nil, time.Time{}); err != nil {
					return err
				}
			}
		case err := <-t.heard:
			return err
		case <-ctx.Done():
			return t.farewell(w)
		}
	}
}

// farewell sends what is left and waits until the peer has taken it; the stream ends soon anyway.
func (t *talk) farewell(w *writer) error {
	for {
		select {
		case b := <-t.queue:
			if err := t.tell(w, b); err != nil {
				return err
			}
			continue
		default:
		}
		if err := t.stream.CloseSend(); err != nil {
			return err
		}
		return <-t.heard
	}
}

func (t *talk) tell(w *writer, b *batch) error {
	w.late = time.Since(b.taken)
	for _, p := range b.parts {
		if err := w.events(p.name, p.events); err != nil {
			return err
		}
	}
	t.x.metrics.Sent()
	return w.flush()
}

// state tells everything that the pools have in flight and hold.
func (t *talk) state(w *writer) error {
	for len(t.queue) > 0 {
		<-t.queue // what happened before is in the state
	}
	gone := maps.Clone(w.told)
	for _, p := range *t.x.pools.Load() {
		delete(gone, p.Name())
		if err := w.state(p.Name(), p); err != nil {
			return err
		}
	}
	for name := range gone {
		if err := w.end(name); err != nil {
			return err
		}
	}
	t.x.metrics.FullState(false)
	return nil
}

func (t *talk) send(parts []*wire.Pool, oldest time.Time) error {
	t.sent++
	t.sentAt = time.Now()
	if !oldest.IsZero() {
		t.mu.Lock()
		if len(t.under) < maxUnderway {
			t.under = append(t.under, underway{t.sent, oldest})
		}
		t.mu.Unlock()
	}
	return t.stream.Send(&wire.Message{Batch: &wire.Batch{Number: t.sent, Pools: parts}})
}

// listen takes the peer's confirmations.
func (t *talk) listen() {
	for {
		a, err := t.stream.Recv()
		if err != nil {
			t.heard <- err
			return
		}
		t.silence.Reset(patience)
		t.confirmed(a.GetTaken())
		if a.GetAgain() {
			t.behind.Store(true)
		}
	}
}

func (t *talk) confirmed(number uint64) {
	now := time.Now()
	t.mu.Lock()
	n := 0
	for ; n < len(t.under) && t.under[n].number <= number; n++ {
		lag := now.Sub(t.under[n].oldest)
		t.x.metrics.Lag(lag)
		t.lagged(lag)
	}
	t.under = append(t.under[:0], t.under[n:]...)
	t.mu.Unlock()
}

// lagged notes the latest lag.
func (l *link) lagged(lag time.Duration) {
	l.mu.Lock()
	l.peer.Lag = lag.Seconds()
	l.mu.Unlock()
}

// connected notes that there is a stream.
func (l *link) connected(h *wire.Hello) {
	l.mu.Lock()
	l.peer = telemetry.Peer{Address: l.address, State: telemetry.PeerConnected, Release: h.GetRelease()}
	l.said = time.Time{}
	l.mu.Unlock()
	same := h.GetHashing() == l.x.self.GetHashing()
	l.x.log.Info("peer is told of picks", "peer", l.address, "release", h.GetRelease(), "prefixes", same)
}
