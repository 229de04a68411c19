package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLifeOfARequest(t *testing.T) {
	l := New()
	k := l.Book(2, 1000, 300, 10, time.Second)
	step := func(what string, want Load) {
		t.Helper()
		if d := cmp.Diff(want, l.Load(2)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	step("booked", Load{Requests: 1, PromptTokens: 1000, NewTokens: 300, UncachedTokens: 300, GrowthTokens: 10, UnseenTokens: 10, OldestUnprefilled: time.Second})
	l.Prefilled(k, 2*time.Second)
	l.Prefilled(k, 3*time.Second)
	step("first token", Load{Requests: 1, Decoding: 1, PromptTokens: 1000, NewTokens: 300, ContextTokens: 1000, GrowthTokens: 10})
	l.Streamed(k, 5)
	step("first part", Load{Requests: 1, Decoding: 1, PromptTokens: 1000, NewTokens: 300, ContextTokens: 1005, OutputTokens: 5, GrowthTokens: 5})
	l.Streamed(k, 7)
	l.Streamed(k, -3)
	step("streamed", Load{Requests: 1, Decoding: 1, PromptTokens: 1000, NewTokens: 300, ContextTokens: 1012, OutputTokens: 12})
	if !l.Release(k) || l.Release(k) {
		t.Error("Release is not true exactly once")
	}
	l.Streamed(k, 5)
	l.Prefilled(k, 4*time.Second)
	step("released", Load{})
}

// A ticket outlives its request; the entry that it named may serve another one by then.
func TestStaleTicket(t *testing.T) {
	l := New()
	old := l.Book(0, 10, 10, 0, 0)
	l.Release(old)
	fresh := l.Book(0, 20, 20, 0, 0)
	if l.Release(old) {
		t.Error("a stale ticket released another request")
	}
	l.Streamed(old, 100)
	if got := l.Load(0); got.Requests != 1 || got.OutputTokens != 0 {
		t.Errorf("load %+v, want one untouched request", got)
	}
	if (l.Move(old, 1, 0, 0) != Ticket{}) || (l.Move(Ticket{}, 1, 0, 0) != Ticket{}) {
		t.Error("a dead ticket moved")
	}
	if !l.Release(fresh) {
		t.Error("the live ticket does not release")
	}
}

func TestMove(t *testing.T) {
	l := New()
	a := l.Book(0, 100, 10, 0, 0)
	b := l.Move(a, 3, 90, time.Second)
	if l.Release(a) {
		t.Error("the ticket of before the move releases")
	}
	if got := l.Load(0); got != (Load{}) {
		t.Errorf("left behind: %+v", got)
	}
	want := Load{Requests: 1, PromptTokens: 100, NewTokens: 90, UncachedTokens: 90, OldestUnprefilled: time.Second}
	if d := cmp.Diff(want, l.Load(3)); d != "" {
		t.Error(d)
	}
	if !l.Release(b) {
		t.Error("the ticket of the move does not release")
	}
}

func TestMark(t *testing.T) {
	l := New()
	l.Mark(5, 0) // never booked
	k := l.Book(0, 100, 50, 0, 0)
	l.Mark(0, 0)
	want := l.Load(0)
	l.Book(0, 100, 50, 0, 0)
	l.Release(k)
	if d := cmp.Diff(want, l.AtMark(0)); d != "" {
		t.Error(d)
	}
	if (l.AtMark(9) != Load{}) || (l.Load(-1) != Load{}) {
		t.Error("a slot out of range has load")
	}
}

func TestDrop(t *testing.T) {
	l := New()
	k := l.Book(1, 10, 10, 0, 0)
	l.Mark(1, 0)
	if err := l.Drop(1); err == nil || err.Error() != "dropping slot 1: 1 requests are in flight" {
		t.Errorf("error %v", err)
	}
	l.Release(k)
	if err := l.Drop(1); err != nil {
		t.Error(err)
	}
	if (l.AtMark(1) != Load{}) {
		t.Error("the mark outlived the slot")
	}
	if err := l.Drop(77); err != nil {
		t.Error(err)
	}
}

// Absurd token counts neither overflow nor go below zero.
func TestAbsurdTokens(t *testing.T) {
	l := New()
	for _, n := range []int{-5, 0, 1 << 40} {
		k := l.Book(0, n, 2*n, 0, 0)
		l.Prefilled(k, 0)
		l.Streamed(k, 1<<40)
		l.Streamed(k, 1<<40)
		if got := l.Load(0); got.PromptTokens < 0 || got.ContextTokens < 0 || got.NewTokens > got.PromptTokens {
			t.Errorf("%d tokens: %+v", n, got)
		}
		l.Release(k)
		if got := l.Load(0); got != (Load{}) {
			t.Errorf("%d tokens left %+v", n, got)
		}
	}
	if l.Release(l.Book(-1, 1, 1, 0, 0)) {
		t.Error("a negative slot was booked")
	}
}

// model is the books kept the slow way: every request, summed when asked.
type model map[Ticket]*line

type line struct {
	slot, prompt, uncached, answer, output int
	prefilled, seen                        bool
	booked                                 time.Duration
}

func (m model) load(slot int) Load {
	var l Load
	oldest := time.Duration(-1)
	for _, r := range m {
		if r.slot != slot {
			continue
		}
		l.Requests++
		l.PromptTokens += int64(r.prompt)
		l.NewTokens += int64(r.uncached)
		l.OutputTokens += int64(r.output)
		l.GrowthTokens += int64(max(0, r.answer-r.output))
		if !r.seen {
			l.UnseenTokens += int64(max(0, r.answer-r.output))
		}
		if r.prefilled {
			l.Decoding++
			l.ContextTokens += int64(r.prompt + r.output)
			continue
		}
		l.UncachedTokens += int64(r.uncached)
		if oldest < 0 || r.booked < oldest {
			oldest = r.booked
		}
	}
	l.OldestUnprefilled = max(0, oldest)
	return l
}

// Booked = released + in flight, on every slot after every event, against the slow books.
func TestAgainstModel(t *testing.T) {
	const slots = 5
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		l, m := New(), model{}
		booked, released := 0, 0
		var tickets []Ticket
		for now := range time.Duration(600) {
			if len(tickets) == 0 || rnd.IntN(3) == 0 {
				p := rnd.IntN(5000)
				u := rnd.IntN(p + 1)
				answer := rnd.IntN(40)
				k := l.Book(rnd.IntN(slots), p, u, answer, now)
				m[k] = &line{slot: int(l.entries[k.entry-1].slot), prompt: p, uncached: u, answer: answer, booked: now}
				tickets = append(tickets, k)
				booked++
			}
			i := rnd.IntN(len(tickets))
			k := tickets[i] // live or long dead
			r := m[k]
			switch rnd.IntN(5) {
			case 0:
				l.Prefilled(k, now)
				if r != nil {
					r.prefilled, r.seen = true, true
				}
			case 4:
				if got, want := l.Assumed(k, now), r != nil && !r.prefilled; got != want {
					t.Fatalf("seed %d: assumed %v, want %v", seed, got, want)
				}
				if r != nil {
					r.prefilled = true
				}
			case 1:
				l.Streamed(k, 7)
				if r != nil {
					r.output += 7
				}
			case 2:
				if got, want := l.Release(k), r != nil; got != want {
					t.Fatalf("seed %d: release %v, want %v", seed, got, want)
				}
				if r != nil {
					released++
				}
				delete(m, k)
			case 3:
				to := rnd.IntN(slots)
				fresh := l.Move(k, to, 11, now)
				if r == nil {
					continue
				}
				delete(m, k)
				m[fresh] = &line{slot: to, prompt: r.prompt, uncached: min(11, r.prompt), answer: r.answer, booked: now}
				tickets = append(tickets, fresh)
			}
			for s := range slots {
				if d := cmp.Diff(m.load(s), l.Load(s)); d != "" {
					t.Fatalf("seed %d, slot %d (-want +got):\n%s", seed, s, d)
				}
			}
			if booked != released+l.Total() {
				t.Fatalf("seed %d: %d booked, %d released, %d in flight", seed, booked, released, l.Total())
			}
		}
		for _, k := range tickets {
			l.Release(k)
		}
		if l.Total() != 0 {
			t.Errorf("seed %d: %d leaked", seed, l.Total())
		}
	}
}

// Entries are used again: memory follows what is in flight, not what was served.
func TestNoGrowth(t *testing.T) {
	l := New()
	for range 10000 {
		l.Release(l.Book(0, 1, 1, 0, 0))
	}
	if n := len(l.entries); n != 1 {
		t.Errorf("%d entries for one request in flight", n)
	}
	if n := testing.AllocsPerRun(100, func() { l.Release(l.Book(0, 1, 1, 0, 0)) }); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}

// TestRemark: a booking that a mark was taken without is in it afterwards, and only there once more.
func TestRemark(t *testing.T) {
	l := New()
	l.Book(0, 100, 40, 10, 1)
	l.Mark(0, 2)
	late := l.Book(0, 50, 20, 5, 3)
	now := l.Load(0)
	l.Remark(late)
	want := l.Load(0)
	want.OldestUnprefilled = 0
	if got := l.AtMark(0); func() bool { got.OldestUnprefilled = 0; return got != want }() {
		t.Errorf("the mark is %+v, want %+v", got, want)
	}
	if l.Load(0) != now {
		t.Error("the books changed")
	}
	l.Release(late)
	l.Remark(late)
	l.Remark(Ticket{})
	if l.AtMark(0).Requests != 2 {
		t.Error("a booking that ended was added")
	}
}
