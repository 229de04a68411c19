package pool

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"pointsman.dev/pointsman/internal/books"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/route"
)

// The queue of a pool: requests that wait in the gateway, because every endpoint is full (Config.Queue) or because none is usable
// (Config.Hold). A pick never waits. Whoever was told ErrFull may call Wait; from then on the pool picks for the request when capacity
// shows: a report, a first token, the end of a request, a new endpoint, the passing of time. That happens in the critical section in
// which it shows, for the first in the queue only as long as there is capacity, and each pick books, so that no capacity is
// given twice and no request is woken in vain.
//
// Where memory is what is short, one that asks for much finds no room where others would. It must not stop them all, and they must not
// take whatever it waits for: one endpoint is kept for it, which at the latest has room when it has nothing to do, and those behind
// that ask for less than half go to the others.

// heldMost is how many requests a pool without Config.Queue may hold.
const heldMost = 1024

// Reasons of a ShedError.
const (
	QueueFull    = "queue_full"    // so many wait already
	QueueTimeout = "queue_timeout" // it waited for as long as it may
)

// ShedError says that a request was refused because it could not wait, or no longer.
type ShedError struct {
	Reason     string        // QueueFull or QueueTimeout
	Max        int           // how many may wait
	Wait       time.Duration // how long each
	RetryAfter time.Duration // when those that wait now should be served; 1 s to 60 s
}

// Error implements error.
func (e *ShedError) Error() string {
	if e.Reason == QueueFull {
		return fmt.Sprintf("waiting for an endpoint: %d requests wait already", e.Max)
	}
	return fmt.Sprintf("waiting for an endpoint: none had room within %v", e.Wait)
}

// queue is the requests that wait, by priority and then in the order of their arrival.
type queue struct {
	lanes []lane // the most urgent first; none is empty
	n     int
	freed bool     // something changed that may have made room
	taken []uint64 // endpoints that one who waits, and was not picked for in this round, waits for
	kept  []uint64 // of these, the ones that are nobody else's
	least int32    // tokens that the smallest of those asks for who were not picked for in this round
	set   []uint64 // scratch of behind
	pace  pace
	shed  map[string]int64 // by reason

	usable time.Duration // when an endpoint was last seen usable, while the pool holds
}

// lane is the requests of one priority.
type lane struct {
	priority    int
	first, last *Booking
}

// turn is a booking's place in the queue.
type turn struct {
	prev, next *Booking
	waiting    bool
	resigned   bool          // its hold is over, so whatever is there is tried
	kept       int           // slot that was kept for it last, plus one; 0 for none
	since      time.Duration // when it began to wait
	err        error         // why it waits no longer without a booking
	over       chan struct{}
}

// Wait makes b wait for an endpoint after ErrFull. It returns nil when one was booked at once or when b waits: Admitted then says when
// that is over. Errors are ErrNoEndpoint and *ShedError. Done takes b out of the queue at any time.
func (p *Pool) Wait(b *Booking, r *Request) error {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	if now >= p.due {
		p.refresh(now)
	}
	b.start(p, r, now)
	b.prompt = p.promptTokens(r)
	b.answer = int32(p.avg.Output(int(b.prompt), r.MaxTokens))
	b.turn = turn{waiting: true, since: now - r.Waited, over: make(chan struct{}, 1)}
	p.queue.add(b)
	p.serve()
	if b.turn.waiting && p.queue.n > p.room() {
		p.queue.remove(b)
		return p.refuse(QueueFull)
	}
	return b.turn.err
}

// room is how many requests may wait. The mutex is held.
func (p *Pool) room() int {
	if p.cfg.Queue.Max > 0 || p.cfg.Hold <= 0 {
		return p.cfg.Queue.Max
	}
	return heldMost
}

// refuse counts and returns a refusal for want of room. The mutex is held.
func (p *Pool) refuse(reason string) *ShedError {
	if p.queue.shed == nil {
		p.queue.shed = map[string]int64{}
	}
	p.queue.shed[reason]++
	after := p.queue.pace.toPass(p.queue.n, p.now())
	if after == 0 {
		after = books.Seconds(p.snap.Params.Residence)
	}
	return &ShedError{Reason: reason, Max: p.room(), Wait: p.cfg.Queue.Wait, RetryAfter: min(max(after, time.Second), retryMost)}
}

// Admitted says that the wait is over: Result has what became of it.
func (b *Booking) Admitted() <-chan struct{} { return b.turn.over }

// Recheck is called by whoever waits, at first after no time and then each time that the returned time has passed. While
// b may go on waiting that is above 0. At 0 the wait is over: with a booking, or with ErrNoEndpoint or a *ShedError.
func (b *Booking) Recheck() (time.Duration, error) {
	p := b.pool
	p.mu.Lock()
	defer p.unlock()
	if !b.turn.waiting {
		return 0, b.turn.err
	}
	now := p.now()
	const often = time.Second // which limit counts may change meanwhile
	for {
		limit, since, held := p.patience(b)
		if limit <= 0 {
			return often, nil
		}
		if left := limit - (now - since); left > 0 {
			return min(left, often), nil
		}
		if !held || b.turn.resigned {
			p.queue.remove(b)
			return 0, p.refuse(QueueTimeout)
		}
		b.turn.resigned = true // an endpoint may be better than what is known of it; if it is full, b waits for room
		p.queue.untake(len(p.unused))
		if p.admit(b, now) {
			return 0, b.turn.err
		}
	}
}

// patience is how long b may wait as things are, 0 for ever, since when, and whether that is for the first usable endpoint. The
// mutex is held.
func (p *Pool) patience(b *Booking) (limit, since time.Duration, held bool) {
	if p.holds(b, p.excluded(b)) || p.cfg.Queue.Max == 0 {
		return p.cfg.Hold, max(b.turn.since, p.queue.usable), true
	}
	return p.cfg.Queue.Wait, b.turn.since, false
}

// wantsRoom says whether only an endpoint that is not full will do for b. One that was tried elsewhere has waited before. The mutex
// is held.
func (p *Pool) wantsRoom(b *Booking) bool {
	return len(b.tried) == 0 && (b.req.Spare || p.cfg.Queue.Max > 0 && !b.req.Light)
}

// holds says whether b has to wait for the first usable endpoint among those that are not excluded. The mutex is held.
func (p *Pool) holds(b *Booking, exclude []uint64) bool {
	if p.cfg.Hold <= 0 || b.req.Light || len(b.tried) > 0 || b.turn.resigned {
		return false
	}
	return !p.anyUsable(exclude)
}

// anyUsable says whether an endpoint that is not excluded showed that it is a model server, and may be asked. The mutex is held.
func (p *Pool) anyUsable(exclude []uint64) bool {
	for i, s := range p.slots {
		if s != nil && exclude[i>>6]&(1<<(i&63)) == 0 && s.proof.shown() && p.snap.Endpoints[i].Admission < uint8(health.LastResort) {
			return true
		}
	}
	return false
}

// Holds says whether a request for which no endpoint could be reached may wait for one, after it has waited for so long.
func (p *Pool) Holds(waited time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return waited < p.cfg.Hold
}

// empty says whether the pool has no endpoint and holds requests until it has: names that nobody knows must not start one.
func (p *Pool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.Hold > 0 && len(p.byURL) == 0
}

// idle says whether nothing is in flight at any endpoint that takes requests. The mutex is held.
func (p *Pool) idle() bool {
	for _, s := range p.slots {
		if s != nil && !s.leaving && s.live+s.theirs > 0 {
			return false
		}
	}
	return true
}

// Bounds of a round: how many of those that wait are looked at when every endpoint is taken, where only one that asks for much less could
// be picked for, and how many while some are not, for those in front may all wait for another model.
const (
	nearWalk = 128
	farWalk  = 4096
)

// serve picks for those that wait, in their order, as long as there is room. What the ones in front wait for is theirs: those
// behind, perhaps for another model, get only what is not. The mutex is held.
func (p *Pool) serve() {
	q := &p.queue
	if q.n == 0 {
		return
	}
	now := p.now()
	q.untake(len(p.unused))
	full, stuck := false, (*Request)(nil) // whether every endpoint is taken; the last one for whose model all are
	for b, walked := q.lanes[0].first, 0; b != nil && walked < farWalk && (!full || walked < nearWalk); {
		next := q.after(b)
		same := stuck != nil && b.req.Sticky == "" && b.req.Model == stuck.Model
		switch {
		case (full || same) && !q.overtakes(b):
			walked++
		case !p.admit(b, now):
			walked++
			full = q.allTaken(p.unused)
			if b.req.Sticky == "" {
				stuck = b.req
			}
		}
		b = next
	}
}

// admit ends the wait of b if there is an endpoint for it, or if there will be none. The mutex is held.
func (p *Pool) admit(b *Booking, now time.Duration) bool {
	q, err := &p.queue, ErrFull
	if set := p.excluded(b); all(set) || !all(q.behind(b, set)) {
		if err = p.assign(b, now); errors.Is(err, ErrFull) {
			q.least = min(q.least, b.asks())
		}
	}
	if errors.Is(err, ErrFull) {
		p.keep(b, p.excluded(b))
		return false
	}
	q.remove(b)
	b.begun, b.turn.err = now, err
	b.turn.over <- struct{}{}
	return true
}

// asks is how many tokens of memory b asks for.
func (b *Booking) asks() int32 { return b.prompt + b.answer }

// keep takes the endpoints that are not in set for b. One of them is kept for it, unless one is for somebody before it. The
// mutex is held.
func (p *Pool) keep(b *Booking, set []uint64) {
	q, best := &p.queue, -1
	has := false
	for k := range set {
		q.taken[k] |= ^set[k]
		has = has || q.kept[k]&^set[k] != 0
	}
	if has {
		return
	}
	if k := b.turn.kept - 1; k >= 0 && set[k>>6]&(1<<(k&63)) == 0 && p.snap.Endpoints[k].Admission < route.Avoid {
		best = k // else those that come and go would each time make another one the emptiest
	} else {
		for i, s := range p.slots {
			if s != nil && set[i>>6]&(1<<(i&63)) == 0 && (best < 0 || p.emptier(i, best)) {
				best = i
			}
		}
	}
	if b.turn.kept = best + 1; best >= 0 {
		q.kept[best>>6] |= 1 << (best & 63)
	}
}

// emptier says whether slot i is likely to have room before slot k. The mutex is held.
func (p *Pool) emptier(i, k int) bool {
	a, b := &p.snap.Endpoints[i], &p.snap.Endpoints[k]
	return cmp.Or(cmp.Compare(a.Admission, b.Admission), cmp.Compare(p.slots[i].live+p.slots[i].theirs, p.slots[k].live+p.slots[k].theirs)) < 0
}

// add puts b behind those of its priority.
func (q *queue) add(b *Booking) {
	priority := b.req.Priority
	k := q.lane(priority)
	if k == len(q.lanes) || q.lanes[k].priority != priority {
		q.lanes = slices.Insert(q.lanes, k, lane{priority: priority})
	}
	l := &q.lanes[k]
	b.turn.prev = l.last
	if l.last != nil {
		l.last.turn.next = b
	} else {
		l.first = b
	}
	l.last = b
	q.n++
}

// remove takes b out if it waits.
func (q *queue) remove(b *Booking) {
	t := &b.turn
	if !t.waiting {
		return
	}
	k := q.lane(b.req.Priority)
	l := &q.lanes[k]
	if t.prev != nil {
		t.prev.turn.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.turn.prev = t.prev
	} else {
		l.last = t.prev
	}
	if l.first == nil {
		q.lanes = slices.Delete(q.lanes, k, k+1)
	}
	t.prev, t.next, t.waiting = nil, nil, false
	q.n--
	q.freed = true // it may have been in the way of others
}

// oldest returns when the first of those that wait began, and false when nobody does.
func (q *queue) oldest() (time.Duration, bool) {
	at := time.Duration(math.MaxInt64)
	for i := range q.lanes {
		at = min(at, q.lanes[i].first.turn.since)
	}
	return at, len(q.lanes) > 0
}

// after returns the one behind b, nil for none.
func (q *queue) after(b *Booking) *Booking {
	if b.turn.next != nil {
		return b.turn.next
	}
	if k := q.lane(b.req.Priority) + 1; k < len(q.lanes) {
		return q.lanes[k].first
	}
	return nil
}

// lane returns where the lane of a priority is or should be.
func (q *queue) lane(priority int) int {
	return sort.Search(len(q.lanes), func(i int) bool { return q.lanes[i].priority >= priority })
}

// untake begins a round in which no endpoint is taken by one that waits for it; words is the length of a set of endpoints.
func (q *queue) untake(words int) {
	if len(q.taken) < words {
		q.taken, q.kept, q.set = make([]uint64, words), make([]uint64, words), make([]uint64, words)
	}
	clear(q.taken)
	clear(q.kept)
	q.least = math.MaxInt32
}

// overtakes says whether b asks for so much less than those before it that it may go where they find no room.
func (q *queue) overtakes(b *Booking) bool { return b.asks() < q.least/2 }

// behind adds to a set of excluded endpoints those that b leaves to others. The result holds until the next call.
func (q *queue) behind(b *Booking, set []uint64) []uint64 {
	theirs := q.taken
	if q.overtakes(b) {
		theirs = q.kept
	}
	for k := range set {
		q.set[k] = set[k] | theirs[k]
	}
	return q.set[:len(set)]
}

// allTaken says that every endpoint is.
func (q *queue) allTaken(unused []uint64) bool {
	for k, w := range unused {
		if w|q.taken[k] != ^uint64(0) {
			return false
		}
	}
	return true
}

// all says that every bit is set.
func all(set []uint64) bool {
	return !slices.ContainsFunc(set, func(w uint64) bool { return w != ^uint64(0) })
}

// The bounds of a Retry-After: the official clients wait up to a minute and treat longer ones as none.
const (
	retryMost  = time.Minute
	paceWindow = 30 * time.Second
)

// pace is how many requests ended lately, fading with paceWindow.
type pace struct {
	n         float64
	at, since time.Duration // last and first end; 0 for none
}

// left counts the end of a request.
func (c *pace) left(now time.Duration) {
	if c.since == 0 {
		c.since = now
	}
	c.n = c.n*fade(now-c.at) + 1
	c.at = now
}

// toPass is how long it should take until n more have ended; 0 unknown.
func (c *pace) toPass(n int, now time.Duration) time.Duration {
	age := now - c.since
	if c.since == 0 || age <= 0 {
		return 0
	}
	perSecond := c.n * fade(now-c.at) / (paceWindow.Seconds() * (1 - fade(age)))
	return books.Seconds(float64(n) / max(perSecond, 1e-6))
}

func fade(d time.Duration) float64 { return math.Exp(-d.Seconds() / paceWindow.Seconds()) }
