package pool

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/prefix"
)

// clock is a pool's time in the hands of a test.
type clock struct{ t atomic.Int64 }

func (c *clock) now() time.Duration      { return time.Duration(c.t.Load()) }
func (c *clock) advance(d time.Duration) { c.t.Add(int64(d)) }

func targets(n int) []discover.Target {
	out := make([]discover.Target, n)
	for i := range out {
		out[i].URL = addr(i)
	}
	return out
}

func addr(i int) string { return fmt.Sprintf("http://10.0.%d.%d:8000", i/250, i%250) }

// testPool has n endpoints that answered and reported that they are idle.
func testPool(t testing.TB, n int, cfg Config) (*Pool, *clock) {
	t.Helper()
	c := &clock{}
	c.advance(time.Hour)
	p := New(cfg, nil, c.now)
	p.SetTargets(targets(n))
	for i := range n {
		p.Report(addr(i), idle())
		p.HealthProbe(addr(i), 200, nil)
	}
	return p, c
}

func idle() Report {
	on := true
	r := EmptyReport()
	r.Engine, r.Running, r.Waiting, r.WaitingCapacity, r.KVUsage = "vllm", 0, 0, 0, 0
	r.BlockSize, r.NumBlocks, r.CapacityTokens, r.MaxModelLen = 16, 20000, 320000, 32768
	r.PrefixCaching, r.ProcessStart = &on, 1000
	r.Queries, r.Hits, r.PromptTokens, r.GenerationTokens = 0, 0, 0, 0
	return r
}

// chain makes a prompt of n blocks of 256 bytes; the first shared of them depend on group, the rest on id.
func chain(group, id uint64, shared, n int) []prefix.Block {
	out := make([]prefix.Block, n)
	h := group*0x9e3779b97f4a7c15 + 1
	for i := range out {
		if i >= shared {
			h += id * 0xbf58476d1ce4e5b9
		}
		h = (h ^ h>>29) * 0x94d049bb133111eb
		out[i] = prefix.Block{Hash: h, End: int32(256 * (i + 1))}
	}
	return out
}

func prompt(id string, blocks []prefix.Block) *Request {
	r := &Request{ID: id, Blocks: blocks, MaxTokens: 100}
	if n := len(blocks); n > 0 {
		r.PromptBytes = int(blocks[n-1].End)
	}
	return r
}

func mustPick(t testing.TB, p *Pool, r *Request) *Booking {
	t.Helper()
	b, err := p.Pick(r)
	if err != nil {
		t.Fatalf("picking for %s: %v", r.ID, err)
	}
	return b
}

// ok is a request that the engine answered in full.
func ok(promptTokens, output int) Result {
	return Result{Outcome: OK, Status: 200, HasUsage: true, Usage: Usage{Prompt: promptTokens, Output: output}}
}

func endpoint(t testing.TB, p *Pool, i int) EndpointStatus {
	t.Helper()
	for _, e := range p.Status().Endpoints {
		if e.URL == addr(i) {
			return e
		}
	}
	t.Fatalf("endpoint %d is not in the status", i)
	return EndpointStatus{}
}
