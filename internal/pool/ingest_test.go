package pool

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/route"
)

func TestStaleReportIsUnknown(t *testing.T) {
	p, c := testPool(t, 2, Config{Name: "chat", StaleAfter: time.Second})
	r := idle()
	r.Running = 5
	p.Report(addr(0), r)
	if e := endpoint(t, p, 0); e.ReportStale || e.Running == nil || *e.Running != 5 {
		t.Fatalf("fresh report: %+v", e)
	}
	c.advance(900 * time.Millisecond)
	p.Report(addr(1), idle())
	c.advance(200 * time.Millisecond)
	e := endpoint(t, p, 0)
	if !e.ReportStale || e.Running != nil || e.KVUsage != nil {
		t.Errorf("after 1.1 s: stale %v running %v", e.ReportStale, e.Running)
	}
	if p.snap.Endpoints[0].Known || !p.snap.Endpoints[1].Known {
		t.Error("the snapshot takes the stale report for known, or the fresh one for unknown")
	}
	if e.BlockSize != 16 || e.CapacityTokens != 320000 {
		t.Error("what the engine is built like was forgotten")
	}
	if p.Status().AllStale {
		t.Error("one endpoint is fresh, yet all are called stale")
	}
}

func TestAllStaleIsSaidOnceAndThePoolServes(t *testing.T) {
	var log strings.Builder
	c := &clock{}
	p := New(Config{Name: "chat", StaleAfter: time.Second}, slog.New(slog.NewTextHandler(&log, nil)), c.now)
	p.SetTargets(targets(3))
	for range 300 {
		c.advance(100 * time.Millisecond)
		p.ReportFailed(addr(0), errors.New("scraping: status 500"))
		p.mu.Lock()
		p.refresh(c.now())
		p.unlock()
	}
	if !p.Status().AllStale {
		t.Error("the gauge does not say that all reports are stale")
	}
	if n := strings.Count(log.String(), "every report is stale, the ledger decides"); n != 1 {
		t.Errorf("said %d times within 30 s, want 1", n)
	}
	mustPick(t, p, prompt("a", nil)).Done(ok(1, 1))
	p.Report(addr(0), idle())
	p.Status()
	if !strings.Contains(log.String(), "fresh again") {
		t.Error("the end was not said")
	}
}

func TestFrozenPageIsUnknown(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat", StaleAfter: time.Second})
	tick := func(r Report) {
		c.advance(200 * time.Millisecond)
		p.Report(addr(0), r)
	}
	for range 50 { // nothing to do: a page that stands still is right
		tick(idle())
	}
	b := mustPick(t, p, prompt("a", nil))
	b.FirstToken()
	b.Progress(40)
	if endpoint(t, p, 0).ReportStale {
		t.Fatal("a page that stood still while nothing ran counts as frozen")
	}
	for range 10 {
		tick(idle())
		b.Progress(40)
	}
	if !endpoint(t, p, 0).ReportStale {
		t.Error("tokens came for 2 s and the page did not move, yet it counts as fresh")
	}
	r := idle()
	r.GenerationTokens = 400
	tick(r)
	if endpoint(t, p, 0).ReportStale {
		t.Error("the page moves again, yet it counts as frozen")
	}
}

func TestRestartForgetsTheCache(t *testing.T) {
	for name, change := range map[string]func(*Report){
		"start time":   func(r *Report) { r.ProcessStart = 5000 },
		"counter fell": func(r *Report) { r.ProcessStart, r.PromptTokens, r.Queries = Unknown, 3, 3 },
		"asleep":       func(r *Report) { r.Asleep = true },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := testPool(t, 1, Config{Name: "chat"})
			r := idle()
			r.PromptTokens, r.Queries = 1000, 1000
			p.Report(addr(0), r)
			b := mustPick(t, p, prompt("a", chain(1, 1, 0, 40)))
			b.FirstToken()
			b.Done(ok(2500, 10))
			if e := endpoint(t, p, 0); e.HeldBlocks == 0 {
				t.Fatal("nothing was credited")
			}
			p.Report(addr(0), r)
			if e := endpoint(t, p, 0); e.HeldBlocks == 0 {
				t.Fatal("an ordinary report emptied the index")
			}
			change(&r)
			p.Report(addr(0), r)
			if e := endpoint(t, p, 0); e.HeldBlocks != 0 {
				t.Errorf("%d blocks outlived the cache", e.HeldBlocks)
			}
		})
	}
}

func TestForeignLoadShowsWithinASecond(t *testing.T) {
	p, c := testPool(t, 2, Config{Name: "chat"})
	own := make([]*Booking, 4)
	for i := range own {
		own[i] = mustPick(t, p, prompt("own", nil))
	}
	here := endpoint(t, p, 0).InFlight
	r := idle()
	r.Running, r.Waiting, r.WaitingCapacity = float64(here+6), 3, 3
	for range 5 {
		c.advance(200 * time.Millisecond)
		p.Report(addr(0), r)
	}
	if got := endpoint(t, p, 0).Foreign; got != 9 {
		t.Errorf("foreign load %d, want 9", got)
	}
	for _, b := range own {
		b.Done(ok(1, 1))
	}
	p.Report(addr(0), func() Report { r := r; r.Running, r.Waiting, r.WaitingCapacity = float64(here), 0, 0; return r }())
	p.Report(addr(0), idle())
	if got := endpoint(t, p, 0).Foreign; got != 0 {
		t.Errorf("foreign load %d after requests of our own ended, want 0", got)
	}
}

func TestOwnRequestsAreNotForeign(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat"})
	for round := range 20 {
		b := mustPick(t, p, &Request{ID: "n", PromptBytes: 400, N: 4})
		r := idle()
		r.Running = 4
		c.advance(200 * time.Millisecond)
		if round%2 == 0 {
			b.Done(ok(100, 1)) // ended here, the report was taken before
		}
		p.Report(addr(0), r)
		if round%2 != 0 {
			b.Done(ok(100, 1))
		}
		if got := endpoint(t, p, 0).Foreign; got != 0 {
			t.Fatalf("round %d: foreign load %d, want 0", round, got)
		}
	}
}

func TestPolicyFollowsTheEngine(t *testing.T) {
	on, off := true, false
	for _, tc := range []struct {
		configured Policy
		says       []*bool
		want       string
		warnings   int
	}{
		{Auto, []*bool{nil, nil}, "prefix", 0},
		{Auto, []*bool{&on, &on}, "prefix", 0},
		{Auto, []*bool{&off, &off}, "least_request", 0},
		{Auto, []*bool{&on, &off}, "prefix", 1},
		{Prefix, []*bool{&off, &off}, "prefix", 1},
		{Prefix, []*bool{&on, nil}, "prefix", 0},
		{LeastRequest, []*bool{&on, &on}, "least_request", 1},
		{LeastRequest, []*bool{&off, nil}, "least_request", 0},
	} {
		p, _ := testPool(t, 2, Config{Name: "chat", Policy: tc.configured})
		for i, says := range tc.says {
			r := idle()
			r.PrefixCaching = says
			p.Report(addr(i), r)
		}
		st := p.Status()
		if st.Policy != tc.want || len(st.Warnings) != tc.warnings {
			t.Errorf("%v with %v: policy %s, warnings %q, want %s and %d", tc.configured, tc.says, st.Policy, st.Warnings, tc.want, tc.warnings)
		}
	}
}

func TestNothingIsCreditedToAnEndpointThatCachesNothing(t *testing.T) {
	off := false
	p, _ := testPool(t, 2, Config{Name: "chat"})
	r := idle()
	r.PrefixCaching = &off
	p.Report(addr(0), r)
	for i := range 40 {
		b := mustPick(t, p, prompt("a", chain(uint64(i), 1, 0, 20)))
		b.FirstToken()
		b.Done(ok(1200, 1))
	}
	if n := endpoint(t, p, 0).HeldBlocks; n != 0 {
		t.Errorf("%d blocks are credited to it", n)
	}
	if n := endpoint(t, p, 1).HeldBlocks; n == 0 {
		t.Error("nothing is credited to the other one")
	}
}

func TestMaxNumSeqsIsObserved(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat"})
	r := idle()
	r.Running, r.Waiting, r.WaitingCapacity, r.KVUsage = 8, 3, 3, 0.2
	for range 4 {
		c.advance(200 * time.Millisecond)
		p.Report(addr(0), r)
	}
	if n := endpoint(t, p, 0).MaxNumSeqs; n != 8 {
		t.Errorf("limit %d, want 8", n)
	}
	c.advance(route.LimitHolds + time.Second)
	p.Report(addr(0), idle())
	if n := endpoint(t, p, 0).MaxNumSeqs; n != 0 {
		t.Errorf("limit %d is kept for ever", n)
	}
	r.KVUsage = 0.9 // waiting for memory, not for a sequence
	for range 4 {
		p.Report(addr(0), r)
	}
	if n := endpoint(t, p, 0).MaxNumSeqs; n != 0 {
		t.Errorf("limit %d was seen where memory was the limit", n)
	}
	p.SetConfig(Config{Name: "chat", Full: Full{MaxNumSeqs: 32}})
	r.Ranks = 2
	p.Report(addr(0), r)
	if n := endpoint(t, p, 0).MaxNumSeqs; n != 64 {
		t.Errorf("limit %d, want the configured 32 of each of 2 ranks", n)
	}
}

func TestAbsurdReportsSteerNothing(t *testing.T) {
	p, _ := testPool(t, 2, Config{Name: "chat"})
	nan := 0.0
	nan /= nan
	r := EmptyReport()
	r.Running, r.Waiting, r.KVUsage, r.NumBlocks, r.CapacityTokens, r.BlockSize = nan, -7, nan, 1e300, 1e300, 1e300
	p.Report(addr(0), r)
	counts := map[string]int{}
	for range 50 {
		b := mustPick(t, p, prompt("a", nil))
		counts[b.Endpoint().Name]++
		b.Done(ok(1, 1))
	}
	if len(counts) != 2 {
		t.Errorf("picks %v: want both endpoints used", counts)
	}
}

func TestPromptOfAnAnswerInOnePieceIsNotWorkForEver(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat"})
	whole := mustPick(t, p, &Request{ID: "whole", PromptBytes: 4000, Whole: true})
	stream := mustPick(t, p, &Request{ID: "stream", PromptBytes: 4000})
	busy := idle()
	busy.Running, busy.Waiting, busy.WaitingCapacity = 1, 1, 1
	c.advance(time.Minute)
	p.Report(addr(0), busy)
	if n := endpoint(t, p, 0).Decoding; n != 0 {
		t.Errorf("%d count as decoding while requests wait", n)
	}
	r := idle()
	r.Running = 2
	p.Report(addr(0), r)
	if n := endpoint(t, p, 0).Decoding; n != 1 {
		t.Errorf("%d count as decoding, want the one whose first token cannot be seen", n)
	}
	if l := p.books.Load(0); l.UncachedTokens != int64(stream.PromptTokens()) || l.UnseenTokens != l.GrowthTokens {
		t.Errorf("what the answer in one piece has produced is taken for known: %+v", l)
	}
	whole.Done(ok(1000, 50))
	stream.FirstToken()
	stream.Done(ok(1000, 50))
	if l := p.books.Load(0); l.Requests != 0 || l.Decoding != 0 || l.ContextTokens != 0 || l.UncachedTokens != 0 {
		t.Errorf("books keep %+v", l)
	}
}

// TestAbsurdSizes: a size that no engine has is unknown, and not one by which memory is bounded.
func TestAbsurdSizes(t *testing.T) {
	for _, size := range []float64{1e12 + 1, 1e18, 1e19, 1e300} {
		p, _ := testPool(t, 1, Config{Policy: Prefix})
		r := idle()
		r.CapacityTokens, r.NumBlocks, r.BlockSize, r.MaxModelLen, r.MaxNumSeqs, r.Running = size, size, size, size, size, size
		p.Report(addr(0), r)
		if got, want := p.slots[0].rep, EmptyReport(); got.CapacityTokens != want.CapacityTokens || got.NumBlocks != want.NumBlocks || got.MaxNumSeqs != want.MaxNumSeqs || got.Running != want.Running {
			t.Errorf("%g: %+v", size, got)
		}
		if e := p.snap.Endpoints[0]; e.CapacityTokens != 0 || e.MaxNumSeqs != 0 || e.Blocks != 0 || e.ForeignRunning != 0 {
			t.Errorf("%g: %+v", size, e)
		}
	}
}
