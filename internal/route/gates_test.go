package route

import (
	"math"
	"testing"
)

func TestGates(t *testing.T) {
	base := func() Endpoint {
		return Endpoint{Known: true, BlockSize: 16, CapacityTokens: 100_000, MaxNumSeqs: 10, KVUsage: 0.45}
	}
	cases := []struct {
		name   string
		prompt int32
		gates  Gates
		change func(e *Endpoint)
		want   GateSet
	}{
		{"idle", 1000, GatesDefault, func(*Endpoint) {}, 0},
		{"somebody waits", 1000, GatesDefault, func(e *Endpoint) { e.Waiting = 1 }, 1 << GateWaiting},
		{"a long prompt does not mind", 16384, GatesDefault, func(e *Endpoint) { e.Waiting = 1 }, 0},
		{"unless the gates are strict", 16384, GatesStrict, func(e *Endpoint) { e.Waiting = 1 }, 1 << GateWaiting},
		{"our own, between two steps", 1000, GatesDefault, func(e *Endpoint) {
			e.Waiting, e.AtReport.Requests, e.AtReport.Decoding = 2, 5, 3
		}, 0},
		{"our own, with little memory left", 1000, GatesDefault, func(e *Endpoint) {
			e.KVUsage, e.Waiting, e.AtReport.Requests, e.AtReport.Decoding = 0.5, 2, 5, 3
		}, 1 << GateWaiting},
		{"our own, strict", 1000, GatesStrict, func(e *Endpoint) {
			e.Waiting, e.AtReport.Requests, e.AtReport.Decoding = 2, 5, 3
		}, 1 << GateWaiting},
		{"more than our own", 1000, GatesDefault, func(e *Endpoint) {
			e.Waiting, e.AtReport.Requests, e.AtReport.Decoding = 3, 5, 3
		}, 1 << GateWaiting},
		{"an old report says nothing", 1000, GatesDefault, func(e *Endpoint) { e.Waiting, e.Running, e.Known = 9, 99, false }, 0},
		{"reported running at the limit", 1000, GatesDefault, func(e *Endpoint) { e.Running = 10 }, 1 << GateMaxNumSeqs},
		{"own at the limit", 1000, GatesDefault, func(e *Endpoint) { e.Requests = 10 }, 1 << GateMaxNumSeqs},
		{"own and foreign at the limit", 1000, GatesDefault, func(e *Endpoint) { e.Requests, e.ForeignRunning, e.Running = 6, 4, 10 }, 1 << GateMaxNumSeqs},
		{"no limit known", 1000, GatesDefault, func(e *Endpoint) { e.Running, e.MaxNumSeqs = 5000, 0 }, 0},
		{"the prompt does not fit", 51_000, GatesDefault, func(*Endpoint) {}, 1 << GateProjectedKV},
		{"the prompt fits", 49_000, GatesDefault, func(*Endpoint) {}, 0},
		{"booked since the report", 1000, GatesDefault, func(e *Endpoint) {
			e.Requests, e.PromptTokens, e.NewTokens, e.UncachedTokens = 1, 49_000, 49_000, 49_000
		}, 1 << GateProjectedKV},
		{"capacity from blocks", 51_000, GatesDefault, func(e *Endpoint) { e.CapacityTokens, e.Blocks = 0, 6250 }, 1 << GateProjectedKV},
		{"no capacity known", 1_000_000, GatesDefault, func(e *Endpoint) { e.CapacityTokens = 0 }, 0},
		{"off", 60_000, GatesOff, func(e *Endpoint) { e.Waiting, e.Running = 5, 50 }, 0},
	}
	for _, c := range cases {
		e := base()
		c.change(&e)
		s := &Snapshot{Params: DefaultParams(), Endpoints: []Endpoint{e}}
		s.Params.Gates = c.gates
		if got := FullGates(s, &Request{PromptTokens: c.prompt}, 0, 0); got != c.want {
			t.Errorf("%s: gates %03b, want %03b (projected %.3f)", c.name, got, c.want, ProjectedKV(s, &Request{PromptTokens: c.prompt}, 0, 0))
		}
	}
}

func TestProjectedKV(t *testing.T) {
	const capacity = 100_000
	load := func(n int32, prompt, news, uncached, output int64) Load {
		l := Load{Requests: n, PromptTokens: prompt, NewTokens: news, UncachedTokens: uncached, OutputTokens: output}
		if uncached == 0 {
			l.Decoding = n
		}
		return l
	}
	cases := []struct {
		name   string
		e      Endpoint
		prompt int32
		hit    int32
		want   float64 // tokens, without growth and rounding
	}{
		{"what is reported", Endpoint{KVUsage: 0.3}, 1000, 0, 31_000},
		{"foreign load stays in", Endpoint{KVUsage: 0.3, Load: load(1, 5000, 5000, 0, 0), AtReport: load(1, 5000, 5000, 0, 0)}, 1000, 0, 31_000},
		{"a half-prefilled prompt counts whole",
			Endpoint{KVUsage: 0.1, Load: load(1, 40_000, 40_000, 40_000, 0), AtReport: load(1, 40_000, 40_000, 40_000, 0)}, 1000, 0, 41_000},
		{"but not beside as much of somebody else's",
			Endpoint{KVUsage: 0.45, Load: load(1, 40_000, 40_000, 40_000, 0), AtReport: load(1, 40_000, 40_000, 40_000, 0)}, 1000, 0, 46_000},
		{"picked since", Endpoint{KVUsage: 0.1, Load: load(2, 30_000, 30_000, 30_000, 0)}, 1000, 0, 41_000},
		{"ended since", Endpoint{KVUsage: 0.4, AtReport: load(2, 30_000, 30_000, 0, 500)}, 1000, 0, 10_500},
		{"streamed since", Endpoint{KVUsage: 0.4, Load: load(1, 40_000, 40_000, 0, 3000), AtReport: load(1, 40_000, 40_000, 0, 0)}, 1000, 0, 44_000},
		{"one hot prefix, held once",
			Endpoint{KVUsage: 0.12, Load: load(20, 180_000, 4000, 0, 0), AtReport: load(20, 180_000, 4000, 0, 0)}, 9000, 8000, 13_000 + 8000*8.0/176},
		{"cached prefixes of many, each held",
			Endpoint{KVUsage: 0.40, Load: load(8, 40_000, 4000, 0, 0), AtReport: load(8, 40_000, 4000, 0, 0)}, 9000, 8000, 49_000},
	}
	for _, c := range cases {
		c.e.Known, c.e.CapacityTokens, c.e.BlockSize = true, capacity, 1
		s := &Snapshot{Params: DefaultParams(), Endpoints: []Endpoint{c.e}}
		s.Params.MeanOutput = 1
		got := ProjectedKV(s, &Request{PromptTokens: c.prompt}, 0, c.hit) * capacity
		if math.Abs(got-c.want) > 40 {
			t.Errorf("%s: %.0f tokens, want %.0f", c.name, got, c.want)
		}
	}
}

// Answers in one piece show nothing until they end. What the engine reports beyond the books is theirs, not foreign: as long as they
// run it is part of their expected growth, and when they have ended nothing of it is left.
func TestUnseenAnswers(t *testing.T) {
	four := Load{Requests: 4, PromptTokens: 20_000, NewTokens: 20_000, GrowthTokens: 32_000, UnseenTokens: 32_000}
	for _, c := range []struct {
		name    string
		now     Load
		foreign int32
		want    float64
	}{
		{"running", four, 0, 53_000},
		{"ended since", Load{}, 0, 1000},
		{"beside somebody else's", Load{}, 1, 31_000},
	} {
		s := &Snapshot{Params: DefaultParams(), Endpoints: []Endpoint{{Known: true, KVUsage: 0.5, CapacityTokens: 100_000, BlockSize: 1,
			Load: c.now, AtReport: four, ForeignRunning: c.foreign}}}
		s.Params.MeanOutput = 1
		if got := ProjectedKV(s, &Request{PromptTokens: 1000}, 0, 0) * 100_000; math.Abs(got-c.want) > 10 {
			t.Errorf("%s: %.0f tokens, want %.0f", c.name, got, c.want)
		}
	}
}

// The growth that decoding will bring: what is still expected of every request in flight, and the whole answer of this one.
func TestGrowth(t *testing.T) {
	s := &Snapshot{Params: DefaultParams(), Endpoints: []Endpoint{{CapacityTokens: 100_000, BlockSize: 1,
		Load: Load{Requests: 10, Decoding: 10, PromptTokens: 10_000, NewTokens: 10_000, OutputTokens: 500, GrowthTokens: 2500}}}}
	s.Params.MeanOutput = 300
	if got := ProjectedKV(s, nil, 0, 0) * 100_000; math.Abs(got-13_005) > 10 {
		t.Errorf("%.0f tokens when nothing is added, want 10,000 of prompts and 3,000 of answers", got)
	}
	if got := ProjectedKV(s, &Request{PromptTokens: 1000, MaxTokens: 50}, 0, 0) * 100_000; math.Abs(got-14_055) > 10 {
		t.Errorf("%.0f tokens, want 1,050 more: max_tokens bounds the growth of this one", got)
	}
	if got := ProjectedKV(s, &Request{PromptTokens: 1000, OutputTokens: 700}, 0, 0) * 100_000; math.Abs(got-14_705) > 10 {
		t.Errorf("%.0f tokens, want 1,700 more: so much is expected of this one", got)
	}
	if ProjectedKV(s, nil, 7, 0) != -1 {
		t.Error("a slot out of range has a projection")
	}
}

// Full endpoints are set aside while they are the exception, whatever they hold. When most are full, the cost decides.
func TestFullIsTheException(t *testing.T) {
	pool := func(n, full int) *Snapshot {
		s := &Snapshot{Params: DefaultParams(), Endpoints: make([]Endpoint, n)}
		for i := range s.Endpoints {
			s.Endpoints[i] = Endpoint{Known: true, BlockSize: 16}
			if i < full {
				s.Endpoints[i].Waiting, s.Endpoints[i].ForeignWaiting = 1, 1
			}
		}
		return s
	}
	hits := []int32{8000}
	r := &Request{PromptTokens: 8192}
	for _, c := range []struct{ n, full int }{{2, 1}, {3, 1}, {4, 1}, {8, 1}, {8, 2}} {
		p := Choose(pool(c.n, c.full), r, hits, nil, 1)
		if p.Slot < c.full || p.Full[GateWaiting] != int32(c.full) {
			t.Errorf("%d of %d full: picked %d, %v", c.full, c.n, p.Slot, p.Full)
		}
	}
	for full := range 8 { // "all" means all, however many are full
		for _, hits := range [][]int32{nil, hits} {
			p, x := Choose(pool(8, full), r, hits, nil, 1), Explain(pool(8, full), r, hits, nil, 1)
			if p.Reason != ReasonPrefix && p.Reason != ReasonLoad || x.Pick.Reason != p.Reason {
				t.Errorf("%d of 8 full: reason %v, explained %v", full, p.Reason, x.Pick.Reason)
			}
		}
	}
	if p := Choose(pool(8, 5), r, hits, nil, 1); p.Slot != 0 || p.Reason != ReasonPrefix {
		t.Errorf("5 of 8 full: picked %d (%v), want the holder", p.Slot, p.Reason)
	}
	if p := Choose(pool(4, 4), r, hits, nil, 1); p.Slot != 0 || p.Reason != ReasonAllFull {
		t.Errorf("all full: picked %d (%v), want the holder, all_full", p.Slot, p.Reason)
	}
	strict := pool(8, 5)
	strict.Params.Gates = GatesStrict
	if p := Choose(strict, r, hits, nil, 1); p.Slot < 5 {
		t.Errorf("strict: picked %d, which is full", p.Slot)
	}
	literal := pool(4, 4)
	literal.Params.WhenFull = Requests
	literal.Endpoints[2].Waiting, literal.Endpoints[2].ForeignWaiting = 1, 1
	for i := range literal.Endpoints {
		literal.Endpoints[i].Running = 5
	}
	literal.Endpoints[2].Running = 4
	if p := Choose(literal, r, hits, nil, 1); p.Slot != 2 || p.Reason != ReasonAllFull {
		t.Errorf("literal shortest queue: picked %d (%v), want 2", p.Slot, p.Reason)
	}
}

// A request that can wait is never sent to a full endpoint, however many of them are full, save to one that has nothing to do.
func TestOpen(t *testing.T) {
	full := func(s *Snapshot, slots ...int) *Snapshot {
		for _, i := range slots {
			s.Endpoints[i].Waiting, s.Endpoints[i].Running, s.Endpoints[i].ForeignRunning, s.Endpoints[i].ForeignWaiting = 3, 8, 8, 3
		}
		return s
	}
	four := func() *Snapshot {
		s := &Snapshot{Params: DefaultParams()}
		for range 4 {
			s.Endpoints = append(s.Endpoints, Endpoint{Known: true, BlockSize: 16, Blocks: 1000, MaxNumSeqs: 64, MaxModelLen: 32768})
		}
		return s
	}
	r := &Request{PromptTokens: 100, Open: true}
	for rnd := range uint64(50) {
		if p := Choose(full(four(), 0, 1, 2), r, []int32{96, 0, 0, 0}, nil, rnd); p.Slot != 3 {
			t.Fatalf("picked %d, want the one that is not full", p.Slot)
		}
		if p := Choose(full(four(), 0, 1, 2, 3), r, nil, nil, rnd); p.Slot != -1 || p.Reason != ReasonAllFull || p.Full[GateWaiting] != 4 {
			t.Fatalf("%+v, want none because all are full", p)
		}
	}
	if p := Choose(full(four(), 0, 1, 2, 3), &Request{PromptTokens: 100}, nil, nil, 1); p.Slot < 0 {
		t.Errorf("a request that cannot wait got none")
	}
	huge := &Request{PromptTokens: 20000, Open: true} // more than any memory holds
	if p := Choose(full(four(), 0, 1, 3), huge, nil, nil, 1); p.Slot != 2 {
		t.Errorf("%+v, want the one that has nothing to do", p)
	}
}
