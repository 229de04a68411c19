package pool

import (
	"errors"
	"net/url"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// ErrNoEndpoint says that the pool has no endpoint that could be asked: none is configured, or none lists the
// model, or every one was tried.
var ErrNoEndpoint = errors.New("picking an endpoint: none left")

// ErrFull says that there is no endpoint for the request now, and that there may be one soon: every one that could be asked is
// full and the request wanted one that is not, or others wait for the same, or the pool holds requests until an endpoint is
// usable. See Pool.Wait.
var ErrFull = errors.New("picking an endpoint: all are full")

// Request is what a pick needs to know. It stays with the caller, who must not change or reuse it or its blocks
// until Booking.Done was called.
type Request struct {
	ID          string
	Number      uint64         // tells the request from others with its ID, in explanations; 0: nobody needs to
	Model       string         // the served name; endpoints that are known not to list it are passed over
	Blocks      []prefix.Block // chain of the prompt, empty when the API has none
	PromptBytes int            // canonical prompt bytes
	MediaBytes  int            // of those, the nominal size of what is no text
	WideBytes   int            // of the rest, bytes above 0x7f
	SameBytes   int            // of the rest, bytes that equal the one before
	TokenIDs    bool           // the prompt is token ids, 4 bytes each
	MaxTokens   int            // 0: not said
	N           int            // answers asked for; 0 means 1
	Whole       bool           // the answer comes in one piece: its first token will not be seen
	Spare       bool           // only an endpoint that is not full will do: else the pick fails with ErrFull
	Sticky      string         // endpoint name that must be taken if it is there (state kept by an engine)
	Only        Subset         // endpoints that it may go to; nil: every one
	Light       bool           // it takes no room at an engine, so it waits for none
	Priority    int            // among those that wait, lower values go first, as in vLLM
	Waited      time.Duration  // how long it has been waiting before
}

// Endpoint is the address of a pick. It is shared by all bookings and never changes.
type Endpoint struct {
	URL  *url.URL
	Name string // host:port, unique in its pool
	host string // of it, without brackets
}

// Outcome is how a request ended, as far as the endpoint is concerned.
type Outcome uint8

// The outcomes.
const (
	OK              Outcome = iota
	ClientError             // 4xx of the client's making, including a prompt that is too long
	ClientCancelled         // the client went away
	UpstreamError           // 5xx, reset, or an answer of a draining engine
	Cut                     // the stream ended before its terminal marker
	Timeout                 // the limit, or the first-byte or idle limit, passed
	Shed                    // the engine refused for load (429, 503)
)

// outcomeWords are for explanations.
var outcomeWords = [...]string{"answered", "refused as the client's fault, or as too long", "given up: the client left, or the gateway ended it", "failed", "broken off", "ended by a limit", "refused for load"}

// String says it in words.
func (o Outcome) String() string {
	if int(o) < len(outcomeWords) {
		return outcomeWords[o]
	}
	return "unknown"
}

// Usage is what the engine counted. Cached holds only if HasCached.
type Usage struct {
	Prompt, Output, Cached int
	HasCached              bool
}

// Result is the end of a request.
type Result struct {
	Outcome    Outcome
	Status     int // of the endpoint's answer; 0: none
	Usage      Usage
	HasUsage   bool
	Tokens     int           // output tokens seen, used without usage
	RetryAfter time.Duration // of a Shed
	Drain      bool          // the answer was that of a draining engine
	Unreached  bool          // of an UpstreamError: no connection came about
}

// Booking is one request's place at one endpoint. Every method may be called from any goroutine, except that
// PickInto and Repick must not run beside others. The zero Booking is that of a request that was never picked; its
// methods do nothing.
type Booking struct {
	pool *Pool
	req  *Request
	s    *slot
	slot int
	ep   *Endpoint
	gone chan struct{}

	pick   route.Pick
	ticket ledger.Ticket
	prompt int32 // tokens, estimated
	hit    int32 // tokens expected in the cache
	answer int32 // tokens expected
	n      int   // sequences
	at     time.Duration
	begun  time.Duration
	tried  []int32

	promise                  prefix.Promise // until the prompt is computed
	prefilled                bool
	busy, failed, lastResort bool
	unsure, booked           bool
	turn                     turn
	nextOwn, prevOwn         *Booking
	traced                   uint64       // its last pick among those that are remembered, plus one; 0: none
	output, told             int32        // tokens in the books; of these, told to the peers
	pending                  atomic.Int64 // tokens not yet in the books
	flushed                  atomic.Int64 // when the books were last told
}

// start readies a booking that is new or done.
func (b *Booking) start(p *Pool, r *Request, now time.Duration) {
	b.pool, b.req, b.s, b.slot, b.ep, b.gone = p, r, nil, -1, nil, nil
	b.pick, b.ticket = route.Pick{Slot: -1}, ledger.Ticket{}
	b.hit, b.promise, b.n = 0, prefix.Promise{}, max(1, min(r.N, 1024))
	b.at, b.begun, b.tried = now, now, b.tried[:0]
	b.prefilled, b.busy, b.failed, b.lastResort, b.unsure, b.booked = false, false, false, false, false, false
	b.turn = turn{}
	b.nextOwn, b.prevOwn, b.output, b.told, b.traced = nil, nil, 0, 0, 0
	b.pending.Store(0)
	b.flushed.Store(int64(now))
}

// Endpoint returns where to send the request.
func (b *Booking) Endpoint() *Endpoint { return b.ep }

// Reason returns what decided the pick.
func (b *Booking) Reason() route.Reason { return b.pick.Reason }

// PredictedHit returns the prompt tokens that the endpoint is expected to have in its cache.
func (b *Booking) PredictedHit() int { return int(b.hit) }

// PromptTokens returns the estimated tokens of the prompt.
func (b *Booking) PromptTokens() int { return int(b.prompt) }

// Tries returns how many endpoints were booked, at least 1 after a pick.
func (b *Booking) Tries() int { return len(b.tried) + 1 }

// Gone is closed when the endpoint went away without closing its streams (/health answers 503 or the port is closed,
// and nothing moves): an open answer will never go on.
func (b *Booking) Gone() <-chan struct{} { return b.gone }

// signOfLife is how old the last word of an endpoint may be for it to count as alive.
const signOfLife = 10 * time.Second

// Alive says whether the endpoint was heard of lately: a report, a connection, a token of an answer. If it cannot be connected to
// it is busy, then, rather than gone.
func (b *Booking) Alive() bool {
	p := b.pool
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !b.booked {
		return false
	}
	last := max(b.s.repAt, b.s.connected, b.s.stirLast)
	return last > 0 && p.now()-last < signOfLife
}

// Repick gives up the endpoint, because of k, and books another one that was not tried. Nothing may have been sent to
// the client. After Headers with 429 or 503 the endpoint is not blamed a second time. It returns false when no
// other endpoint is left; the booking then stays where it is until Done.
func (b *Booking) Repick(k health.Kind) bool {
	p := b.pool
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.unlock()
	if !b.booked {
		return false
	}
	now := p.now()
	if !b.busy || k == health.KindDrain {
		b.blame(k, now)
	}
	old, oldSlot, oldTicket := b.s, b.slot, b.ticket
	b.tried = append(b.tried, int32(b.slot))
	p.trace.end(b, k.String())
	b.promise.Break(p.index, b.slot)
	old.disown(b)
	if err := p.assign(b, now); err != nil {
		old.promise(b)
		old.own(b)
		b.tried = b.tried[:len(b.tried)-1]
		p.touch(oldSlot, now)
		p.wake(old, now)
		return false
	}
	b.busy = false
	p.leave(oldSlot, old, oldTicket, b.n, now)
	return true
}

// Dispatched records that the request is on its way: a connection was made.
func (b *Booking) Dispatched() {
	b.with(func(p *Pool, now time.Duration) {
		b.s.machine.Connected(now)
		b.s.heard, b.s.connected = true, now
	})
}

// Headers records the head of the endpoint's answer. 429 and 503 lower the endpoint's preference for retryAfter,
// or for a moment when that is 0.
func (b *Booking) Headers(status int, retryAfter time.Duration) {
	b.with(func(p *Pool, now time.Duration) {
		if status == 429 || status == 503 {
			b.s.machine.Busy(now, retryAfter)
			b.busy = true
			p.wake(b.s, now)
		}
	})
}

// FirstToken records that the endpoint began to answer: its prefill is done. Later calls are no-ops.
func (b *Booking) FirstToken() {
	b.with(func(p *Pool, now time.Duration) {
		if b.prefilled {
			return
		}
		b.prefill(now)
		b.s.learn.ObserveTTFT((now - b.at).Seconds(), b.pick.Predicted, now)
		b.succeed(now)
	})
}

// Flushing the tokens of a stream into the books costs the pool's mutex, so it is done now and then: nothing that
// a pick looks at changes by a few tokens.
const (
	flushTokens = 32
	flushEvery  = 200 * time.Millisecond
)

// Progress records output tokens. It is cheap: one call per read of a stream.
func (b *Booking) Progress(tokens int) {
	if b.pool == nil {
		return
	}
	sum := b.pending.Add(int64(max(0, tokens)))
	if sum < flushTokens && b.pool.now()-time.Duration(b.flushed.Load()) < flushEvery {
		return
	}
	b.with(func(p *Pool, now time.Duration) { b.flush(now) })
}

// Done ends the booking, or the wait for one. Only the first call counts.
func (b *Booking) Done(res Result) {
	p := b.pool
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.unlock()
	p.queue.remove(b)
	if !b.booked {
		return
	}
	now := p.now()
	b.flush(now)
	if !b.prefilled && res.Outcome == OK {
		b.prefill(now)
		b.learnWhole(&res, now)
		b.succeed(now)
	}
	if !b.prefilled {
		b.promise.Break(p.index, b.slot)
	}
	b.judge(&res, now)
	p.trace.end(b, res.Outcome.String())
	p.learn(b, &res, now)
	b.s.disown(b)
	b.booked = false
	p.leave(b.slot, b.s, b.ticket, b.n, now)
}

// with runs f under the pool's mutex if the booking is alive, and brings the snapshot up to date.
func (b *Booking) with(f func(p *Pool, now time.Duration)) {
	p := b.pool
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.unlock()
	if !b.booked {
		return
	}
	now := p.now()
	f(p, now)
	p.touch(b.slot, now)
}
