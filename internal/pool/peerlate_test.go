package pool

import (
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/discover"
)

// TestPeersEndThatAReportShowedFirst: an endpoint's report no longer shows a request, of whose end the peer speaks only afterwards. From
// the moment that it is known, the books of the time of the report do not hold it, and load from elsewhere is not taken for it.
func TestPeersEndThatAReportShowedFirst(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat"})
	peer := p.NewPeer()
	c.advance(time.Second)
	for id := range uint64(2) {
		peer.Apply(&Event{Kind: Booked, ID: id, Endpoint: addr(0), Prompt: 4000, Uncached: 4000, Answers: 1})
	}
	peer.Apply(&Event{Kind: Prefilled, ID: 0})
	peer.Apply(&Event{Kind: Streamed, ID: 0, Output: 128})
	c.advance(200 * time.Millisecond)
	r := idle()
	r.Running = 3 // one of the peer, and two from elsewhere
	p.Report(addr(0), r)
	c.advance(20 * time.Millisecond)
	peer.Apply(&Event{Kind: Ended, ID: 0, Age: 40 * time.Millisecond})
	e := p.snap.Endpoints[0]
	if want := e.Load; e.AtReport != want || want.Requests != 1 || want.PromptTokens != 4000 || want.UncachedTokens != 4000 {
		t.Errorf("at the report %+v, want what is left now: %+v", e.AtReport, want)
	}
	for range 2 {
		c.advance(100 * time.Millisecond)
		p.Report(addr(0), r)
	}
	if e := endpoint(t, p, 0); e.Foreign != 2 {
		t.Errorf("3 run, one of the peer: foreign %d", e.Foreign)
	}

	// One that ended after the report was in it.
	peer.Apply(&Event{Kind: Ended, ID: 1, Age: 0})
	if e := p.snap.Endpoints[0]; e.Requests != 0 || e.AtReport.Requests != 1 {
		t.Errorf("ended after the report: %d now, %d at the report", e.Requests, e.AtReport.Requests)
	}

	// Both ends of one came after the report of a moment when it was over.
	c.advance(100 * time.Millisecond)
	p.Report(addr(0), r)
	c.advance(10 * time.Millisecond)
	peer.Apply(&Event{Kind: Booked, ID: 9, Endpoint: addr(0), Prompt: 10, Age: 50 * time.Millisecond})
	peer.Apply(&Event{Kind: Ended, ID: 9, Age: 15 * time.Millisecond})
	if e := p.snap.Endpoints[0]; e.AtReport.Requests != 0 || e.AtReport.PromptTokens != 0 {
		t.Errorf("over before the report: %+v", e.AtReport)
	}
	empty(t, p)
}

// TestPeersNameTheLifeOfAnAddress: requests at a pod that is gone do not count at the one that has its address now, whichever of the two
// gateways hears of the change first.
func TestPeersNameTheLifeOfAnAddress(t *testing.T) {
	a, b, peer := twins(t, 0)
	pod := func(p *Pool, id string) {
		p.SetTargets([]discover.Target{{URL: addr(0), ID: id}})
		p.Report(addr(0), idle())
	}
	pod(a, "first")
	pod(b, "first")
	old := mustPick(t, a, prompt("old", chain(1, 1, 0, 40)))
	relay(t, a, peer)
	if e := endpoint(t, b, 0); e.Peers != 1 || e.HeldBlocks != 40 {
		t.Fatalf("%d requests, %d blocks at the first", e.Peers, e.HeldBlocks)
	}
	counts := func(what string, peers, blocks int) {
		t.Helper()
		if st := b.Status(); st.Peers != peers || st.Endpoints[0].HeldBlocks != blocks {
			t.Errorf("%s: %d requests of the peer and %d blocks, want %d and %d", what, st.Peers, st.Endpoints[0].HeldBlocks, peers, blocks)
		}
	}
	pod(b, "second")
	counts("the other pod is known here", 0, 0)
	relayState(a, peer)
	counts("the peer, which does not know it, says all again", 0, 0)
	pod(a, "second")
	mustPick(t, a, prompt("new", chain(2, 2, 0, 30)))
	relayState(a, peer)
	counts("both know it", 1, 30)

	pod(a, "third")
	fresh := mustPick(t, a, prompt("newest", chain(3, 3, 0, 20)))
	relay(t, a, peer)
	counts("the peer knows yet another one", 1, 30)
	pod(b, "third")
	counts("and so do we", 1, 20)
	fresh.Done(ok(2560, 10))
	old.Done(ok(2560, 10))
	relay(t, a, peer)
	counts("they ended", 0, 20)
}

// TestPeersFullStateAfterALoss: what is lost with the ends and first tokens before a full state makes nothing of what that says untrue, and
// what is only promised is not told as held.
func TestPeersFullStateAfterALoss(t *testing.T) {
	a, b, peer := twins(t, 1)
	computed := mustPick(t, a, prompt("computed", chain(1, 1, 0, 40)))
	relay(t, a, peer)
	computed.FirstToken()
	computed.Done(ok(2560, 10))
	a.Take() // never arrives
	open := mustPick(t, a, prompt("open", chain(2, 2, 0, 30)))
	relayState(a, peer)
	if e := endpoint(t, b, 0); e.HeldBlocks != 70 || e.Peers != 1 {
		t.Errorf("%d blocks, %d requests; want 40 that were computed and 30 that are about to be", e.HeldBlocks, e.Peers)
	}
	open.Done(Result{Outcome: ClientCancelled})
	relay(t, a, peer)
	if e := endpoint(t, b, 0); e.HeldBlocks != 40 {
		t.Errorf("%d blocks are held after the prompt of 30 was given up", e.HeldBlocks)
	}
}

// TestAnswerInOnePieceIsToldOnce: its prefill is assumed at one report, and not told again at each.
func TestAnswerInOnePieceIsToldOnce(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat"})
	p.Share()
	r := prompt("whole", chain(1, 1, 0, 40))
	r.Whole = true
	mustPick(t, p, r)
	for range 100 {
		c.advance(time.Second)
		p.Report(addr(0), idle())
	}
	if events, _, _ := p.Take(); len(events) != 2 {
		t.Errorf("%d events, want the pick and its assumed first token", len(events))
	}
}
