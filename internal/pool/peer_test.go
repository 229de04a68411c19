package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/prefix"
)

// relay tells q what happened in p.
func relay(t testing.TB, p *Pool, q *Peer) {
	t.Helper()
	events, _, lost := p.Take()
	if lost {
		t.Fatal("the journal lost something")
	}
	for i := range events {
		if !q.Apply(&events[i]) {
			t.Fatalf("event %d was refused: %+v", i, events[i])
		}
	}
}

// relayState tells q all of p.
func relayState(p *Pool, q *Peer) {
	q.Begin()
	for i := 0; ; i++ {
		st, more := p.State(i)
		if !more {
			break
		}
		for _, c := range st.Held {
			q.Holds(st.Endpoint, st.Life, c)
		}
		for k := range st.Open {
			q.Apply(&st.Open[k])
		}
	}
	q.Complete()
}

// twins are two pools of the same n endpoints, of which the second hears what the first does.
func twins(t testing.TB, n int) (a, b *Pool, peer *Peer) {
	t.Helper()
	a, _ = testPool(t, n, Config{Name: "chat"})
	b, _ = testPool(t, n, Config{Name: "chat"})
	a.Share()
	return a, b, b.NewPeer()
}

func TestPeersPicksCountAsLoadAndPrefix(t *testing.T) {
	a, b, peer := twins(t, 2)
	long := chain(1, 1, 0, 400)
	first := mustPick(t, a, prompt("first", long))
	relay(t, a, peer)

	e := endpoint(t, b, first.slot)
	if e.InFlight != 0 || e.Peers != 1 || e.HeldBlocks != 400 {
		t.Fatalf("after the pick: %+v", e)
	}
	if got := b.snap.Endpoints[first.slot]; got.UncachedTokens != 25600 || got.Peers != 1 {
		t.Errorf("the snapshot does not hold the peer's prompt: %+v", got)
	}
	if k := mustPick(t, b, prompt("other", chain(2, 2, 0, 20))); k.slot == first.slot {
		t.Error("a short prompt was sent behind 25,600 tokens that a peer had just sent there")
	} else {
		k.FirstToken()
		k.Done(ok(1280, 10))
	}
	first.FirstToken()
	first.Progress(200)
	relay(t, a, peer)
	if got := b.snap.Endpoints[first.slot]; got.Decoding != 1 || got.ContextTokens != 25800 || got.UncachedTokens != 0 {
		t.Errorf("after the first token and 200 more: %+v", got.Load)
	}
	if e := endpoint(t, b, first.slot); e.Decoding != 0 {
		t.Errorf("a peer's request counts as decoding of ours: %+v", e)
	}
	first.Done(ok(25600, 200))
	relay(t, a, peer)
	again := mustPick(t, b, prompt("again", append(slices.Clone(long), chain(9, 9, 0, 402)[400:]...)))
	if again.slot != first.slot || again.hit < 25000 {
		t.Errorf("a prompt that a peer had sent to %d went to %d with a hit of %d", first.slot, again.slot, again.hit)
	}
}

func TestPeersLoadIsNotForeign(t *testing.T) {
	a, b, peer := twins(t, 1)
	for range 4 {
		mustPick(t, a, prompt("theirs", nil))
	}
	mustPick(t, b, prompt("ours", nil))
	relay(t, a, peer)
	r := idle()
	r.Running = 7
	for range 3 {
		b.Report(addr(0), r)
	}
	if e := endpoint(t, b, 0); e.Foreign != 2 || e.InFlight != 1 || e.Peers != 4 {
		t.Errorf("7 run, 1 ours and 4 of the peer: foreign %d, in flight %d, peers %d", e.Foreign, e.InFlight, e.Peers)
	}
	peer.Close()
	for range 3 {
		b.Report(addr(0), r)
	}
	if e := endpoint(t, b, 0); e.Foreign != 6 || e.InFlight != 1 || e.Peers != 0 {
		t.Errorf("the peer is lost: foreign %d, in flight %d, peers %d", e.Foreign, e.InFlight, e.Peers)
	}
}

// TestPeersPickThatAReportShowedFirst: an endpoint reports a request before the peer that sent it says so. It is neither foreign nor
// does its waiting make the endpoint full, from the moment that it is known.
func TestPeersPickThatAReportShowedFirst(t *testing.T) {
	p, c := testPool(t, 2, Config{Name: "chat"})
	peer := p.NewPeer()
	c.advance(time.Second)
	r := idle()
	r.Waiting, r.WaitingCapacity = 1, 1
	for range 2 {
		c.advance(200 * time.Millisecond)
		p.Report(addr(0), r)
	}
	if e := endpoint(t, p, 0); e.Foreign != 1 || p.Status().Full["waiting"] != 1 {
		t.Fatalf("before the peer says anything: foreign %d, full %v", e.Foreign, p.Status().Full)
	}
	c.advance(30 * time.Millisecond)
	peer.Apply(&Event{Kind: Booked, ID: 1, Endpoint: addr(0), Prompt: 4000, Uncached: 4000, Age: 50 * time.Millisecond})
	e, snap := endpoint(t, p, 0), p.snap.Endpoints[0]
	if e.Foreign != 0 || p.Status().Full["waiting"] != 0 || snap.AtReport.UncachedTokens != 4000 {
		t.Errorf("booked before the report: foreign %d, full %v, at the report %+v", e.Foreign, p.Status().Full, snap.AtReport)
	}
	peer.Apply(&Event{Kind: Booked, ID: 2, Endpoint: addr(1), Prompt: 4000, Uncached: 4000, Age: 10 * time.Millisecond})
	p.Report(addr(1), idle())
	peer.Apply(&Event{Kind: Booked, ID: 3, Endpoint: addr(1), Prompt: 4000, Uncached: 4000})
	if snap := p.snap.Endpoints[1]; snap.AtReport.UncachedTokens != 4000 || snap.UncachedTokens != 8000 {
		t.Errorf("booked after the report: %+v, at the report %+v", snap.Load, snap.AtReport)
	}
	peer.Close()
	empty(t, p)
}

func TestPeersUnfinishedPrefillIsNoPrefix(t *testing.T) {
	a, b, peer := twins(t, 1)
	k := mustPick(t, a, prompt("cut", chain(1, 1, 30, 40)))
	relay(t, a, peer)
	own := mustPick(t, b, prompt("ours", chain(1, 2, 30, 40)))
	if !own.unsure {
		t.Error("a prefix that a peer has not computed yet is promised for certain")
	}
	own.FirstToken()
	k.Done(Result{Outcome: ClientCancelled})
	relay(t, a, peer)
	if e := endpoint(t, b, 0); e.HeldBlocks != 40 {
		t.Errorf("%d blocks are held: 40 of ours are, of which 30 are shared, and the 10 of the peer never were computed", e.HeldBlocks)
	}
}

// TestPeersFollow lets one gateway do all that a gateway can, and the other one hears of it late, repeatedly and with full states
// in between. When all is said their books are the same; when all is over they are empty.
func TestPeersFollow(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		a, b, peer := twins(t, 3)
		var open []*Booking
		drop := func(i int, r Result) {
			open[i].Done(r)
			open = slices.Delete(open, i, i+1)
		}
		for step := range 600 {
			switch i := rnd.IntN(max(1, len(open))); {
			case len(open) == 0 || rnd.IntN(3) == 0:
				r := prompt(fmt.Sprint(step), chain(rnd.Uint64N(3), rnd.Uint64N(40), 20, 21+rnd.IntN(30)))
				r.N, r.Whole = rnd.IntN(3), rnd.IntN(5) == 0
				open = append(open, mustPick(t, a, r))
			case rnd.IntN(4) == 0:
				open[i].FirstToken()
			case rnd.IntN(4) == 0:
				open[i].Progress(rnd.IntN(200))
			case rnd.IntN(9) == 0:
				open[i].Repick(health.KindConnect)
			case rnd.IntN(20) == 0:
				drop(i, Result{Outcome: Outcome(rnd.IntN(7))})
			case rnd.IntN(3) == 0:
				drop(i, ok(3000, 50))
			case rnd.IntN(30) == 0:
				relayState(a, peer) // before what the journal still has
			case rnd.IntN(10) == 0:
				relay(t, a, peer)
			}
		}
		for len(open) > 20 {
			drop(0, ok(3000, 50))
		}
		relay(t, a, peer)
		if peer.Len() != len(open) {
			t.Fatalf("seed %d: %d requests at the peer, %d here", seed, peer.Len(), len(open))
		}
		for i := range a.slots {
			x, y := a.books.Load(i), b.books.Load(i)
			x.OldestUnprefilled, y.OldestUnprefilled = 0, 0
			if behind := x.OutputTokens - y.OutputTokens; behind < 0 || behind >= tellTokens*int64(x.Requests)+1 {
				t.Errorf("seed %d, endpoint %d: %d output tokens behind", seed, i, behind)
			}
			x.OutputTokens, y.OutputTokens, x.ContextTokens, y.ContextTokens = 0, 0, 0, 0
			x.GrowthTokens, y.GrowthTokens, x.UnseenTokens, y.UnseenTokens = 0, 0, 0, 0
			if x != y {
				t.Errorf("seed %d, endpoint %d:\n%+v here\n%+v there", seed, i, x, y)
			}
		}
		for len(open) > 0 {
			drop(0, ok(3000, 50))
		}
		relay(t, a, peer)
		empty(t, b)
		if peer.blocks != 0 {
			t.Errorf("seed %d: %d blocks are kept for nobody", seed, peer.blocks)
		}
	}
}

// empty checks that nothing is in flight by any count.
func empty(t *testing.T, p *Pool) {
	t.Helper()
	for i, s := range p.slots {
		l := p.books.Load(i)
		if l.Requests|l.Decoding != 0 || l.PromptTokens|l.NewTokens|l.UncachedTokens|l.ContextTokens|l.OutputTokens|l.GrowthTokens|l.UnseenTokens != 0 {
			t.Errorf("endpoint %d: the books hold %+v", i, l)
		}
		if s != nil && (s.live|s.theirs|s.theirDec != 0 || !s.foreign.Empty() || s.promises != (prefix.Promises{}) || s.ours != nil) {
			t.Errorf("endpoint %d: live %d, theirs %d (%d), sequences %+v, lists %v %v", i, s.live, s.theirs, s.theirDec, s.foreign, s.promises, s.ours)
		}
	}
}

func TestPeersEndpointsComeAndGo(t *testing.T) {
	a, b, peer := twins(t, 2)
	b.SetTargets(targets(1))
	k := []*Booking{mustPick(t, a, prompt("1", chain(1, 1, 0, 40))), mustPick(t, a, prompt("2", chain(2, 2, 0, 40)))}
	if k[0].slot == k[1].slot {
		t.Fatal("both requests went to one endpoint")
	}
	relay(t, a, peer)
	if st := b.Status(); st.Peers != 1 || len(st.Endpoints) != 1 {
		t.Fatalf("one endpoint is known here: %d requests of the peer, %d endpoints", st.Peers, len(st.Endpoints))
	}
	b.SetTargets(targets(2))
	if st := b.Status(); st.Peers != 2 || endpoint(t, b, 1).HeldBlocks != 40 {
		t.Errorf("both are known: %d requests of the peer, %d blocks", st.Peers, endpoint(t, b, 1).HeldBlocks)
	}
	b.SetTargets(nil)
	if st := b.Status(); st.Peers != 0 || len(st.Endpoints) != 0 {
		t.Errorf("none is left: %d requests of the peer, %d endpoints", st.Peers, len(st.Endpoints))
	}
	b.SetTargets(targets(2))
	for i := range k {
		k[i].FirstToken()
		k[i].Done(ok(2560, 10))
	}
	relay(t, a, peer)
	empty(t, b)
}

func TestPeersFullStateReplaces(t *testing.T) {
	a, b, peer := twins(t, 2)
	ended := mustPick(t, a, prompt("ended", chain(1, 1, 0, 40)))
	stays := mustPick(t, a, prompt("stays", chain(2, 2, 0, 40)))
	stays.FirstToken()
	stays.Progress(100)
	relay(t, a, peer)
	ended.FirstToken()
	ended.Done(ok(2560, 10))
	mustPick(t, a, prompt("new", chain(3, 3, 0, 40)))
	a.Take() // never arrives
	relayState(a, peer)
	if st := b.Status(); st.Peers != 2 || peer.Len() != 2 {
		t.Errorf("%d requests of the peer, want the one that stayed and the new one", st.Peers)
	}

	// A gateway that starts now knows what the endpoints hold at once.
	fresh, _ := testPool(t, 2, Config{Name: "chat"})
	relayState(b, fresh.NewPeer())
	relayState(a, fresh.NewPeer())
	for i := range 2 {
		x, y := endpoint(t, b, i), endpoint(t, fresh, i)
		if x.HeldBlocks == 0 || x.HeldBlocks != y.HeldBlocks || x.HeldBytes != y.HeldBytes {
			t.Errorf("endpoint %d: holds %d blocks, a fresh gateway believes %d", i, x.HeldBlocks, y.HeldBlocks)
		}
	}
}

func TestPeersBounds(t *testing.T) {
	p, _ := testPool(t, 1, Config{Name: "chat"})
	q := p.NewPeer()
	absurd := Event{Kind: Booked, ID: 1, Endpoint: addr(0), Prompt: -5, Uncached: 1 << 30, Answers: -1, Output: 1<<31 - 1, Work: -1,
		Blocks: []prefix.Block{{Hash: 1, End: 900}, {Hash: 2, End: 3}}, Computed: true}
	for id := range uint64(maxPeerBookings) {
		absurd.ID = id + 1
		if !q.Apply(&absurd) {
			t.Fatalf("booking %d was refused", id)
		}
		absurd.Endpoint = "http://nowhere"
	}
	absurd.ID = 1 << 40
	if q.Apply(&absurd) {
		t.Error("one more than the bound was taken")
	}
	if e := p.snap.Endpoints[0]; e.PromptTokens != 1 || e.NewTokens != 1 || e.Peers != 1 {
		t.Errorf("an absurd booking counts as %+v", e.Load)
	}
	q.Close()
	q.Apply(&absurd)
	empty(t, p)
	if len(p.peers) != 0 {
		t.Error("the pool still knows a peer that was closed")
	}
}

func TestJournalLosesWithoutHarm(t *testing.T) {
	a, b, peer := twins(t, 2)
	var k Booking
	r := prompt("many", chain(1, 1, 0, 40))
	for range journalEvents {
		if err := a.PickInto(&k, r); err != nil {
			t.Fatal(err)
		}
		k.Done(ok(10, 10))
	}
	stays := mustPick(t, a, r)
	events, _, lost := a.Take()
	if !lost || len(events) > journalEvents {
		t.Fatalf("%d events, lost %v", len(events), lost)
	}
	for i := range events {
		peer.Apply(&events[i])
	}
	relayState(a, peer)
	if st := b.Status(); st.Peers != 1 {
		t.Errorf("%d requests of the peer, want 1", st.Peers)
	}
	stays.Done(ok(10, 10))
	relay(t, a, peer)
	empty(t, b)
}

// TestSharingAllocatesNothing: what a request does to the journal is free of garbage.
func TestSharingAllocatesNothing(t *testing.T) {
	p, c := testPool(t, 10, Config{Name: "chat"})
	p.Share()
	r := prompt("id", chain(1, 1, 0, 60))
	var k Booking
	one := func() {
		if err := p.PickInto(&k, r); err != nil {
			t.Fatal(err)
		}
		k.FirstToken()
		k.Progress(100)
		k.Done(ok(3840, 100))
		c.advance(time.Millisecond)
	}
	for range 5000 {
		one()
		p.Take()
	}
	if n := testing.AllocsPerRun(500, one); n > 0 {
		t.Errorf("%v allocations per request", n)
	}
}
