package pool

import (
	"errors"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/books"
	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

var errNotHTTP = errors.New("want http://host:port or https://host:port")

// slot is one endpoint: what the pool knows beside the books, the index and the snapshot. It is never reused: an
// address that comes back gets a new one, perhaps with another number.
type slot struct {
	key     string // URL
	id      string // of the life of the address, "" if its source tells none
	said    discover.Settings
	pageAt  int // port of the metrics page, 0: the endpoint's own
	ep      *Endpoint
	born    uint64 // trace sequence at its start
	leaving bool
	machine *health.Machine
	lives   int // of the machine, when it was looked at last
	state   health.State
	learn   route.Learner
	refused health.Refusals

	live     int             // bookings of ours that are not done
	theirs   int             // bookings of peers that are not done
	theirDec int             // of these, first token seen
	promises prefix.Promises // of those whose prefill has not been seen, ours and theirs
	ours     *Booking        // list of ours
	gone     chan struct{}
	cut      bool // gone is closed

	warmth    warmth
	coldSince time.Duration // since when it answers and could be warmed

	rep                 Report
	hasRep              bool
	repAt               time.Duration // of the last good report
	stirred             bool          // requests of ours moved since the page did,
	stirFirst, stirLast time.Duration // first and last
	connected           time.Duration // of the last connection that was made for a request
	known               bool          // the report is fresh and the page moves
	repErr              string
	why                 string // the last thing that spoke against it, for the log and the operator
	heard, missed       bool   // something answered at the address; it was said that nothing does
	proof               proof
	modelsErr           string // of the last reading of the model list; "" when it was good
	modelsFails         int    // answers in a row that were no list
	modelsSaid          bool   // said once per row
	wantsKey            bool   // the last answer was 401 or 403

	foreign              ledger.Foreign // beside both
	seqsSeen             route.LimitLearner
	maxSeqs              int // as the engine's settings page says; 0 unknown
	fit                  route.CapacityLearner
	capacity             int64 // bytes last given to the index
	models               []Model
	listed               bool // models were read at least once
	version              string
	picks, restarts      int64
	predicted, actualHit int64
}

func newSlot(key string, ep *Endpoint, m *health.Machine, avg *route.Averages, born uint64) *slot {
	return &slot{key: key, ep: ep, machine: m, born: born, gone: make(chan struct{}), rep: EmptyReport(),
		learn: route.Learner{Pool: avg}}
}

// refresh recomputes every slot: what the passing of time changed. The mutex is held.
func (p *Pool) refresh(now time.Duration) {

	p.queue.freed = true
	p.avg.Apply(&p.snap.Params)
	p.snap.Regret = p.index.Regret()
	fresh, used := 0, 0
	p.refused = 0
	for _, s := range p.slots {
		if s != nil && !s.leaving {
			p.refused += s.refused.Share()
		}
	}
	for i, s := range p.slots {
		if s == nil {
			continue
		}
		p.touch(i, now)
		p.cutSilent(s, now)
		if !s.leaving {
			used++
			if s.known {
				fresh++
			}
		}
	}
	if p.cfg.Hold > 0 && p.anyUsable(p.unused) {
		p.queue.usable = now
	}
	p.noteStale(used > 0 && fresh == 0, now)
	if now-p.missed.since >= missedRest {
		p.sayMissed()
	}
	p.schedule(now)
}

// schedule finds out when time alone changes something next. The mutex is held.
func (p *Pool) schedule(now time.Duration) {
	p.due = now + time.Second
	for _, s := range p.slots {
		if s == nil {
			continue
		}
		if at := s.machine.NextEvent(now); at > now {
			p.due = min(p.due, at)
		}
		if s.known {
			p.due = min(p.due, s.repAt+p.cfg.StaleAfter+1)
		}
	}
}

// cutSilent tells the streams of a departed endpoint that nothing will come. The mutex is held.
func (p *Pool) cutSilent(s *slot, now time.Duration) {
	gone := s.machine.Gone(now)
	if gone && !s.cut && s.live > 0 {
		s.cut = true
		close(s.gone)
	}
	if !gone && s.cut {
		s.cut, s.gone = false, make(chan struct{})
	}
}

// touch brings the snapshot's view of one slot up to date. The mutex is held. It costs some 100 ns and runs a few
// times per request.
func (p *Pool) touch(i int, now time.Duration) {
	s := p.slots[i]
	if n := s.machine.Lives(); n != s.lives {
		s.lives = n
		p.chill(s, now)
	}
	if st := s.stateAt(now); st != s.state {
		p.stateChanged(s, st)
	}
	s.known = s.hasRep && now-s.repAt <= p.cfg.StaleAfter && !s.frozen(p.cfg.StaleAfter)
	e := route.Endpoint{
		Admission: uint8(s.admission(now)),
		Penalty:   s.machine.Preference(now) + p.refusals(s, now),
		Known:     s.known,
		KVUsage:   -1,
		Kappa:     settle(p.snap.Endpoints[i].Kappa, s.learn.Kappa(now)),
		Rho:       settle(p.snap.Endpoints[i].Rho, s.learn.Rho(now)),
	}
	r := &s.rep
	if s.known {
		e.Running, e.Waiting = count32(r.Running), count32(waiting(r))
		e.KVUsage = r.KVUsage
		e.ForeignRunning, e.ForeignWaiting = s.foreign.Load-s.foreign.Waiting, s.foreign.Waiting
		e.Known = r.Running >= 0 || r.Waiting >= 0
	}
	// What an engine is built like stays true while its reports are stale.
	e.BlockSize, e.Blocks = count32(r.BlockSize), count32(r.NumBlocks)
	e.CapacityTokens, e.MaxModelLen = int64(max(0, r.CapacityTokens)), count32(s.window())
	e.MaxNumSeqs, e.Budget = p.maxNumSeqs(s, now), int32(min(s.said.MaxBatchedTokens, math.MaxInt32))
	e.Load, e.AtReport, e.Peers = books.Load(p.books.Load(i)), books.Load(p.books.AtMark(i)), int32(s.theirs)
	_, held := p.index.Held(i)
	e.HeldTokens = int64(float64(held) / p.snap.Params.BytesPerToken)
	p.set(i, e)
}

// set writes one endpoint of the snapshot and keeps what was there for explanations. The mutex is held.
func (p *Pool) set(i int, e route.Endpoint) {
	if p.snap.Endpoints[i] == e {
		return
	}
	p.trace.changed(i, &p.snap.Endpoints[i])
	p.snap.Endpoints[i] = e
}

// settle keeps the old value while the new one is within a percent, so that a slowly decaying average does not
// count as a change.
func settle(old, fresh float64) float64 {
	if math.Abs(old-fresh) <= 0.01*old {
		return old
	}
	return fresh
}

// frozen says that the page stands still although requests of ours moved on this endpoint for a while: whatever
// answers /metrics no longer knows what the engine does. A page without counters cannot tell.
func (s *slot) frozen(after time.Duration) bool {
	return s.stirred && s.stirLast-s.stirFirst > after && (s.rep.GenerationTokens >= 0 || s.rep.PromptTokens >= 0)
}

// stir records that a request of ours moved on the endpoint.
func (s *slot) stir(now time.Duration) {
	if !s.stirred {
		s.stirred, s.stirFirst = true, now
	}
	s.stirLast = now
}

// window returns the model length, by the model list or by the page; Unknown if neither says.
func (s *slot) window() float64 {
	longest := 0
	for _, m := range s.models {
		longest = max(longest, m.MaxModelLen)
	}
	if longest > 0 {
		return float64(longest)
	}
	if s.rep.MaxModelLen <= 0 && s.said.MaxModelLen > 0 {
		return float64(s.said.MaxModelLen)
	}
	return s.rep.MaxModelLen
}

// caching is whether the engine caches prefixes, by its page or by how it was started; nil unknown.
func (s *slot) caching() *bool {
	if s.rep.PrefixCaching != nil || s.said.PrefixCaching == discover.Unsaid {
		return s.rep.PrefixCaching
	}
	on := s.said.PrefixCaching == discover.On
	return &on
}

// waiting is what the waiting gate looks at: requests that wait for memory or a sequence. Deferred ones wait for
// something that another endpoint would not have either, or not for long.
func waiting(r *Report) float64 {
	if r.WaitingCapacity >= 0 {
		return r.WaitingCapacity
	}
	return r.Waiting
}

// maxNumSeqs is what is configured, else what the engine says, else how it was started, else what was observed; 0 unknown.
func (p *Pool) maxNumSeqs(s *slot, now time.Duration) int32 {
	if n := p.cfg.Full.MaxNumSeqs; n > 0 {
		return int32(min(n*max(1, s.rep.Ranks), math.MaxInt32))
	}
	if s.rep.MaxNumSeqs > 0 {
		return count32(s.rep.MaxNumSeqs)
	}
	if s.maxSeqs > 0 {
		return int32(min(s.maxSeqs, math.MaxInt32))
	}
	if n := s.said.MaxNumSeqs; n > 0 {
		return int32(min(n*max(1, s.rep.Ranks), math.MaxInt32))
	}
	return s.seqsSeen.Limit(now)
}

// count32 turns a reported number into a count; unknown and absurd ones become 0.
func count32(v float64) int32 {
	if !(v > 0) {
		return 0
	}
	return int32(min(v, math.MaxInt32))
}
