// Package ledger keeps the books of requests in flight per endpoint: what was picked here and has not ended.
//
// A request is booked at the pick, not at its first token, so that the next pick sees it. It is released exactly once:
// a Ticket carries a generation, and a second Release, or any event after it, is a no-op. Sums are integers that are
// added and subtracted with the values kept in the entry, so they come back to zero exactly and never go negative.
//
// A Ledger is not safe for concurrent use: the owner of the pool holds its lock. It has no clock: now is the monotonic
// time since an arbitrary start.
package ledger

import (
	"fmt"
	"time"
)

// Ticket stands for one booked request. The zero Ticket stands for none; every method accepts it and does nothing.
type Ticket struct {
	entry int32 // index + 1
	gen   uint32
}

// Number identifies the booking among all that its ledger ever made (an entry would have to be reused 4 billion times to
// repeat one). It is 0 for the zero Ticket, and where more than 16 million requests are in flight.
func (t Ticket) Number() uint64 {
	const entryBits = 24
	if t.entry >= 1<<entryBits {
		return 0
	}
	return uint64(t.gen)<<entryBits | uint64(t.entry)
}

// Load is what one endpoint has in flight by these books.
type Load struct {
	Requests       int   // in flight
	Decoding       int   // of those, first token seen
	PromptTokens   int64 // whole prompts of all in flight
	NewTokens      int64 // of those, not expected in the endpoint's cache at the pick
	UncachedTokens int64 // NewTokens of the requests whose first token was not seen
	ContextTokens  int64 // prompt plus output of the decoding requests
	OutputTokens   int64 // streamed by all in flight
	GrowthTokens   int64 // expected output less what was streamed, of each request; one that passed its expectation counts 0
	UnseenTokens   int64 // GrowthTokens of the requests whose first token was not seen, those answered in one piece above all: also once they are Assumed

	OldestUnprefilled time.Duration // when the oldest request without a first token was booked; 0 when there is none
}

type entry struct {
	slot       int32
	gen        uint32
	live       bool
	prefilled  bool
	seen       bool // its first token was
	prompt     int32
	uncached   int32
	output     int32
	expected   int32 // output
	booked     time.Duration
	prev, next int32 // FIFO of the slot's unprefilled entries, index + 1
	free       int32
}

type slot struct {
	load       Load
	mark       Load
	head, tail int32
}

// Ledger is the books of one pool. The zero value is ready.
type Ledger struct {
	entries []entry
	slots   []slot
	free    int32
}

// New returns empty books.
func New() *Ledger { return &Ledger{} }

// Book enters a request of prompt tokens, uncached of which are not expected in the cache of slot, whose answer is expected
// to have so many tokens. Negative values count as 0, uncached is cut to prompt. A negative slot books nothing and
// returns the zero Ticket.
func (l *Ledger) Book(slot int, prompt, uncached, answer int, now time.Duration) Ticket {
	if slot < 0 {
		return Ticket{}
	}
	i := l.free
	if i == 0 {
		l.entries = append(l.entries, entry{})
		i = int32(len(l.entries))
	} else {
		l.free = l.entries[i-1].free
	}
	e := &l.entries[i-1]
	prompt = clampTokens(prompt, maxTokens)
	*e = entry{gen: e.gen + 1, live: true, slot: int32(slot), prompt: int32(prompt),
		uncached: int32(clampTokens(uncached, prompt)), expected: int32(clampTokens(answer, maxTokens)), booked: now}
	l.enter(e, i)
	return Ticket{entry: i, gen: e.gen}
}

// Prefilled records that the first token of the request was seen. It returns true when its prefill was not known to be over; later
// calls are no-ops.
func (l *Ledger) Prefilled(t Ticket, now time.Duration) bool {
	e := l.find(t)
	if e != nil && !e.seen {
		e.seen = true
		l.slots[e.slot].load.UnseenTokens -= e.growth()
	}
	return l.Assumed(t, now)
}

// Assumed records that the prefill of a request is taken to be over whose first token cannot be seen: what it has produced stays unknown.
// It returns true when that was not known; later calls are no-ops.
func (l *Ledger) Assumed(t Ticket, _ time.Duration) bool {
	e := l.find(t)
	if e == nil || e.prefilled {
		return false
	}
	s := &l.slots[e.slot]
	l.unlink(s, e)
	e.prefilled = true
	s.load.Decoding++
	s.load.UncachedTokens -= int64(e.uncached)
	s.load.ContextTokens += int64(e.prompt) + int64(e.output)
	return true
}

// Streamed adds tokens of output. Tokens before the first Prefilled count as output, not yet as context.
func (l *Ledger) Streamed(t Ticket, tokens int) {
	e := l.find(t)
	if e == nil || tokens <= 0 {
		return
	}
	tokens = clampTokens(tokens, maxTokens-int(e.output))
	s := &l.slots[e.slot]
	before := e.growth()
	e.output += int32(tokens)
	grown := before - e.growth()
	s.load.GrowthTokens -= grown
	s.load.OutputTokens += int64(tokens)
	if e.prefilled {
		s.load.ContextTokens += int64(tokens)
	}
	if !e.seen {
		s.load.UnseenTokens -= grown
	}
}

// Move rebooks the request on another slot, where uncached tokens are new: another endpoint serves it. The old ticket
// is dead, the new one is returned. A dead ticket moves nothing and returns the zero Ticket.
func (l *Ledger) Move(t Ticket, slot int, uncached int, now time.Duration) Ticket {
	e := l.find(t)
	if e == nil {
		return Ticket{}
	}
	prompt, expected := int(e.prompt), int(e.expected)
	l.Release(t)
	return l.Book(slot, prompt, uncached, expected, now)
}

// Release takes the request off the books. It returns true exactly once per booking.
func (l *Ledger) Release(t Ticket) bool {
	e := l.find(t)
	if e == nil {
		return false
	}
	s := &l.slots[e.slot]
	if e.prefilled {
		s.load.Decoding--
		s.load.ContextTokens -= int64(e.prompt) + int64(e.output)
	} else {
		l.unlink(s, e)
		s.load.UncachedTokens -= int64(e.uncached)
	}
	if !e.seen {
		s.load.UnseenTokens -= e.growth()
	}
	s.load.Requests--
	s.load.PromptTokens -= int64(e.prompt)
	s.load.NewTokens -= int64(e.uncached)
	s.load.OutputTokens -= int64(e.output)
	s.load.GrowthTokens -= e.growth()
	e.live = false
	e.free = l.free
	l.free = t.entry
	return true
}

// Load returns the books of slot. A slot that was never booked is empty.
func (l *Ledger) Load(slot int) Load {
	if slot < 0 || slot >= len(l.slots) {
		return Load{}
	}
	s := &l.slots[slot]
	ld := s.load
	if s.head != 0 {
		ld.OldestUnprefilled = l.entries[s.head-1].booked
	}
	return ld
}

// Mark remembers the books of slot as they are now: a report of the endpoint was taken.
func (l *Ledger) Mark(slot int, _ time.Duration) {
	if slot < 0 {
		return
	}
	l.grow(slot)
	s := &l.slots[slot]
	s.mark = l.Load(slot)
}

// Remark adds a booking to the last Mark of its slot: it was in flight by then, and the books learn of it only now. It counts as
// one without a first token.
func (l *Ledger) Remark(t Ticket) {
	e := l.find(t)
	if e == nil {
		return
	}
	m := &l.slots[e.slot].mark
	m.Requests++
	m.PromptTokens += int64(e.prompt)
	m.NewTokens += int64(e.uncached)
	m.UncachedTokens += int64(e.uncached)
	m.GrowthTokens += e.growth()
	m.UnseenTokens += e.growth()
}

// Unmark takes a booking out of the last Mark of its slot: it had ended by then, and the books learn of it only now. What is not
// known of the moment of the Mark is taken as it is now.
func (l *Ledger) Unmark(t Ticket) {
	e := l.find(t)
	if e == nil {
		return
	}
	m := &l.slots[e.slot].mark
	m.Requests = max(0, m.Requests-1)
	take := func(from *int64, n int64) { *from = max(0, *from-n) }
	take(&m.PromptTokens, int64(e.prompt))
	take(&m.NewTokens, int64(e.uncached))
	take(&m.OutputTokens, int64(e.output))
	take(&m.GrowthTokens, e.growth())
	if !e.seen {
		take(&m.UnseenTokens, e.growth())
	}
	if e.prefilled {
		m.Decoding = max(0, m.Decoding-1)
		take(&m.ContextTokens, int64(e.prompt)+int64(e.output))
		return
	}
	take(&m.UncachedTokens, int64(e.uncached))
}

// AtMark returns the books as of the last Mark of slot; zero when there was none.
func (l *Ledger) AtMark(slot int) Load {
	if slot < 0 || slot >= len(l.slots) {
		return Load{}
	}
	return l.slots[slot].mark
}

// Drop forgets slot so that another endpoint can use its number. It must be empty: work that is still in flight on a
// removed endpoint keeps its slot until it ends. The error says how much is left.
func (l *Ledger) Drop(slot int) error {
	if slot < 0 || slot >= len(l.slots) {
		return nil
	}
	if n := l.slots[slot].load.Requests; n != 0 {
		return fmt.Errorf("dropping slot %d: %d requests are in flight", slot, n)
	}
	clear(l.slots[slot : slot+1])
	return nil
}

// Total sums the requests in flight on all slots.
func (l *Ledger) Total() int {
	n := 0
	for i := range l.slots {
		n += l.slots[i].load.Requests
	}
	return n
}

const maxTokens = 1<<31 - 1

func clampTokens(n, most int) int { return max(0, min(n, most)) }

func (l *Ledger) find(t Ticket) *entry {
	if t.entry <= 0 || int(t.entry) > len(l.entries) {
		return nil
	}
	e := &l.entries[t.entry-1]
	if !e.live || e.gen != t.gen {
		return nil
	}
	return e
}

// growth is what the answer is still expected to add.
func (e *entry) growth() int64 { return max(0, int64(e.expected)-int64(e.output)) }

func (l *Ledger) grow(slotIndex int) {
	for slotIndex >= len(l.slots) {
		l.slots = append(l.slots, slot{})
	}
}

func (l *Ledger) enter(e *entry, i int32) {
	l.grow(int(e.slot))
	s := &l.slots[e.slot]
	s.load.Requests++
	s.load.PromptTokens += int64(e.prompt)
	s.load.NewTokens += int64(e.uncached)
	s.load.UncachedTokens += int64(e.uncached)
	s.load.GrowthTokens += e.growth()
	s.load.UnseenTokens += e.growth()
	e.prev = s.tail
	if s.tail != 0 {
		l.entries[s.tail-1].next = i
	} else {
		s.head = i
	}
	s.tail = i
}

func (l *Ledger) unlink(s *slot, e *entry) {
	if e.prev != 0 {
		l.entries[e.prev-1].next = e.next
	} else {
		s.head = e.next
	}
	if e.next != 0 {
		l.entries[e.next-1].prev = e.prev
	} else {
		s.tail = e.prev
	}
	e.prev, e.next = 0, 0
}
