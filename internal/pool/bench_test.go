package pool

import (
	"fmt"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/prefix"
)

// BenchmarkPick is a pick, its booking and its end, with prefix indexes that hold what a busy pool holds: budget
// <= 5 us for the pick at 100 endpoints, 0 allocations.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkPick(b, n, false, false) })
		b.Run(fmt.Sprintf("%d/cycle", n), func(b *testing.B) { benchmarkPick(b, n, true, false) })
		b.Run(fmt.Sprintf("%d/shared", n), func(b *testing.B) { benchmarkPick(b, n, false, true) })
	}
}

// benchmarkPick times the pick alone, or the whole cycle of pick, first token and end. A shared pool keeps its picks for peers.
func benchmarkPick(b *testing.B, n int, cycle, shared bool) {
	p, c := testPool(b, n, Config{Name: "bench"})
	if shared {
		p.Share()
	}
	const conversations = 4000
	chains := make([][]prefix.Block, conversations)
	for i := range chains {
		chains[i] = chain(uint64(i%7), uint64(i+1), 40, 60) // 15 kB, two thirds of it a system prompt
	}
	reqs := make([]Request, conversations)
	books := make([]Booking, 256)
	for i := range reqs {
		reqs[i] = *prompt("id", chains[i])
	}
	run := func(i int) {
		k := &books[i%len(books)]
		k.FirstToken()
		k.Done(Result{Outcome: OK, HasUsage: true, Usage: Usage{Prompt: 3840, Output: 100}})
		c.advance(200_000)
		if err := p.PickInto(k, &reqs[i*7919%conversations]); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 3 * maxUndo {
		run(i)
	}
	b.ReportAllocs()
	if cycle {
		for i := 0; b.Loop(); i++ {
			run(i)
		}
		return
	}
	// Stopping the benchmark's timer would cost more than what is timed.
	var spent time.Duration
	picks := 0
	for i := 0; b.Loop(); i++ {
		if shared && i%256 == 0 { // the buffers of 50 ms at 5,000 requests per second; what takes them allocates
			b.StopTimer()
			p.Take()
			b.StartTimer()
		}
		k := &books[i%len(books)]
		k.FirstToken()
		k.Done(Result{Outcome: OK, HasUsage: true, Usage: Usage{Prompt: 3840, Output: 100}})
		c.advance(200_000)
		start := time.Now()
		err := p.PickInto(k, &reqs[i*7919%conversations])
		spent += time.Since(start)
		picks++
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(picks), "ns/pick")
}
