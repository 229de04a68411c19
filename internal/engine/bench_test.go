package engine_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// h100 is one endpoint of the simulated fleet: Qwen3-32B on two H100, 307,328 tokens of KV.
func h100() engine.Config {
	p, _ := engine.ProfileByName("qwen3-32b-h100-tp2")
	return engine.Config{Blocks: 19209, BlockSize: 16, MaxNumSeqs: 256, MaxBatchedTokens: 8192, MaxModelLen: 131072, PrefixCaching: true, Profile: p}
}

// BenchmarkStep is one decode step of a batch of 64. Budget: 3 us, 0 allocations.
func BenchmarkStep(b *testing.B) {
	e := engine.New(h100())
	seqs := make([]engine.Seq, 64)
	fill := func() {
		for i := range seqs {
			seqs[i] = engine.Seq{PromptTokens: 1000, MaxTokens: 2000, Hashes: []uint64{uint64(i + 1)}}
			if err := e.Add(&seqs[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		st, ok := e.Schedule()
		if !ok {
			fill()
			continue
		}
		e.Finish(st)
	}
}

// A step of decodes allocates nothing but the growth of block lists, which doubles and so dies out: less than one allocation
// in a step of 64. A simulated hour is a hundred thousand steps per endpoint.
func TestStepAllocatesNothing(t *testing.T) {
	e := engine.New(h100())
	for i := range 64 {
		if err := e.Add(&engine.Seq{PromptTokens: 1000, MaxTokens: 5000, Hashes: []uint64{uint64(i + 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		st, _ := e.Schedule()
		e.Finish(st)
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(500, step); n > 0 {
		t.Errorf("%.0f allocations per step", n)
	}
}

// BenchmarkHotPrefix is a request of 8,192 shared and 300 own tokens from Add to its end, 100 output tokens, 60 at a time: the
// look-up and release of 512 blocks and a share of the steps. Budget: 20 us.
func BenchmarkHotPrefix(b *testing.B) {
	e := engine.New(h100())
	chain := make([]uint64, 512)
	for i := range chain {
		chain[i] = uint64(i)*0x9e3779b97f4a7c15 + 1
	}
	pool := make([]engine.Seq, 60)
	for i := range pool {
		pool[i] = engine.Seq{Hashes: chain, PromptTokens: 8492, MaxTokens: 100}
		if err := e.Add(&pool[i]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	done := 0
	for want := 1; b.Loop(); want++ {
		for done < want {
			st, _ := e.Schedule()
			for _, o := range e.Finish(st) {
				if o.Finished != engine.None {
					done++
					if err := e.Add(o.Seq); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
	}
}

// BenchmarkBlockedHead is a step while a prompt of 100,000 tokens waits at the head of the line: it is not looked up again.
// Budget: 2 us.
func BenchmarkBlockedHead(b *testing.B) {
	cfg := h100()
	e := engine.New(cfg)
	chain := make([]uint64, 6250)
	for i := range chain {
		chain[i] = uint64(i)*0x9e3779b97f4a7c15 + 7
	}
	fill := func() {
		for i := range 3 {
			if err := e.Add(&engine.Seq{PromptTokens: 80000, MaxTokens: 20000, Hashes: []uint64{uint64(i) + 1}}); err != nil {
				b.Fatal(err)
			}
		}
		for range 40 {
			st, _ := e.Schedule()
			e.Finish(st)
		}
		if err := e.Add(&engine.Seq{PromptTokens: 100000, MaxTokens: 1, Hashes: chain}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		st, ok := e.Schedule()
		if !ok {
			b.StopTimer()
			fill()
			b.StartTimer()
			continue
		}
		e.Finish(st)
	}
}

// BenchmarkFleet is 420 virtual seconds of eight endpoints under 45 requests a second with one 8,192-token system prompt (the
// hot-prefix workload), dealt in turn. Budget: 5 s for a simulation around it leaves 3 s here.
func BenchmarkFleet(b *testing.B) {
	for b.Loop() {
		tokens := fleet(b, 420*time.Second)
		b.ReportMetric(float64(tokens), "tokens/op")
	}
}

func fleet(tb testing.TB, span time.Duration) (tokens uint64) {
	type node struct {
		e    *engine.Engine
		st   engine.Step
		busy bool
		at   time.Duration
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	chain := make([]uint64, 512)
	for i := range chain {
		chain[i] = uint64(i)*0x9e3779b97f4a7c15 + 1
	}
	nodes := make([]node, 8)
	for i := range nodes {
		nodes[i].e = engine.New(h100())
	}
	arrival, turn := time.Duration(0), 0
	var free []*engine.Seq
	for now := time.Duration(0); now < span; {
		next := arrival
		for i := range nodes {
			if nodes[i].busy {
				next = min(next, nodes[i].at)
			}
		}
		now = next
		if now == arrival {
			var s *engine.Seq
			if n := len(free); n > 0 {
				s, free = free[n-1], free[:n-1]
			} else {
				s = &engine.Seq{}
			}
			s.Hashes, s.PromptTokens, s.MaxTokens = chain, 8192+150+rnd.IntN(300), 100+rnd.IntN(100)
			if err := nodes[turn%8].e.Add(s); err != nil {
				tb.Fatal(err)
			}
			turn++
			arrival += time.Duration(rnd.ExpFloat64() / 45 * float64(time.Second))
		}
		for i := range nodes {
			n := &nodes[i]
			if n.busy && n.at == now {
				n.busy = false
				for _, o := range n.e.Finish(n.st) {
					if o.Finished != engine.None {
						free = append(free, o.Seq)
					}
				}
			}
			if !n.busy {
				n.st, n.busy = n.e.Schedule()
				n.at = now + n.st.Duration
			}
		}
	}
	for i := range nodes {
		tokens += nodes[i].e.Stats().Generated
	}
	return tokens
}
