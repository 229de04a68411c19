package prefix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// chainOf is the chain of a text whose messages are the given strings.
func chainOf(messages ...string) []Block {
	var h Hasher
	for _, m := range messages {
		h.Write([]byte(m))
		h.Cut()
	}
	return h.Blocks(1, nil)
}

func text(rnd *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + rnd.IntN(26))
	}
	return string(b)
}

// model is the same thing done block by block: per slot a list of blocks, most
// recent first.
type model struct {
	capacity int64
	order    []Block // most recent first
	size     map[uint64]int64
	bytes    int64
}

func newModel(capacity int64) *model { return &model{capacity: capacity, size: map[uint64]int64{}} }

func (m *model) insert(chain []Block) (evicted int64) {
	in := map[uint64]bool{}
	end := int32(0)
	for _, b := range chain {
		in[b.Hash] = true
		if _, ok := m.size[b.Hash]; !ok {
			m.size[b.Hash] = int64(b.End - end)
			m.bytes += int64(b.End - end)
		}
		end = b.End
	}
	order := slices.Clone(chain)
	for _, b := range m.order {
		if !in[b.Hash] {
			order = append(order, b)
		}
	}
	m.order = order
	for m.bytes > m.capacity {
		last := m.order[len(m.order)-1]
		m.order = m.order[:len(m.order)-1]
		evicted += m.size[last.Hash]
		m.bytes -= m.size[last.Hash]
		delete(m.size, last.Hash)
	}
	return evicted
}

func (m *model) hit(chain []Block) int32 {
	hit := int32(0)
	for _, b := range chain {
		if _, ok := m.size[b.Hash]; !ok {
			break
		}
		hit = b.End
	}
	return hit
}

// check walks everything that the index remembers and returns the first broken
// invariant.
func (x *Index) check() error {
	for i := range x.slots {
		s := &x.slots[i]
		blocks, bytes, runs := 0, int64(0), 0
		seen := map[*run]bool{}
		var newer *run
		for r := s.newest; r != nil; r = r.holder(i).older {
			h := r.holder(i)
			if h.newer != newer {
				return fmt.Errorf("slot %d: broken link", i)
			}
			if p := r.parent; p != nil {
				if !seen[p] {
					return fmt.Errorf("slot %d: a run is more recent than its parent", i)
				}
				if int(p.holder(i).held) != len(p.blocks) {
					return fmt.Errorf("slot %d: holds a run but not all of its parent", i)
				}
			}
			if h.held < 1 || int(h.held) > len(r.blocks) {
				return fmt.Errorf("slot %d: holds %d of %d blocks", i, h.held, len(r.blocks))
			}
			if x.heads[r.blocks[0].Hash] != r {
				return fmt.Errorf("slot %d: holds a run that is not in the tree", i)
			}
			seen[r], newer = true, r
			runs++
			blocks += int(h.held)
			bytes += int64(r.size(0, int(h.held)))
		}
		if s.oldest != newer || blocks != s.blocks || bytes != s.bytes || runs != s.runs {
			return fmt.Errorf("slot %d: counts %d blocks %d bytes %d runs, has %d %d %d", i, s.blocks, s.bytes, s.runs, blocks, bytes, runs)
		}
	}
	for _, r := range x.heads {
		if len(r.holders) == 0 {
			return fmt.Errorf("a run without holder is remembered")
		}
	}
	return nil
}

// TestIndexEqualsBlockwiseModel plays random conversations with shared system
// prompts, branches, repeats and prefixes of earlier prompts.
func TestIndexEqualsBlockwiseModel(t *testing.T) {
	const slots, capacity = 5, 40_000
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		x := NewIndex()
		models := make([]*model, slots)
		for i := range models {
			models[i] = newModel(capacity)
			x.SetCapacity(i, capacity)
		}
		var chains [][]Block
		var talks [][]string
		systems := []string{text(rnd, 3000), text(rnd, 700), text(rnd, 10)}
		hits := make([]int32, slots)
		for step := range 1500 {
			var messages []string
			if len(talks) > 0 && rnd.IntN(3) > 0 {
				messages = slices.Clone(talks[rnd.IntN(len(talks))])
				if rnd.IntN(4) == 0 {
					messages = messages[:1+rnd.IntN(len(messages))]
				}
			} else {
				messages = []string{systems[rnd.IntN(len(systems))]}
			}
			for range rnd.IntN(3) {
				messages = append(messages, text(rnd, 1+rnd.IntN(900)))
			}
			talks = append(talks, messages)
			chain := chainOf(messages...)
			chains = append(chains, chain)
			slot := rnd.IntN(slots)
			if got, want := x.Insert(slot, chain, time.Duration(step)), models[slot].insert(chain); got != want {
				t.Fatalf("seed %d step %d: evicted %d bytes, want %d", seed, step, got, want)
			}
			if err := x.check(); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			probe := chains[rnd.IntN(len(chains))]
			x.Hits(probe, hits)
			for i, m := range models {
				if want := m.hit(probe); hits[i] != want {
					t.Fatalf("seed %d step %d slot %d: %d bytes held, want %d", seed, step, i, hits[i], want)
				}
				if blocks, bytes := x.Held(i); blocks != len(m.order) || bytes != m.bytes {
					t.Fatalf("seed %d step %d slot %d: holds %d blocks %d bytes, want %d %d", seed, step, i, blocks, bytes, len(m.order), m.bytes)
				}
			}
		}
		for i := range slots {
			x.Clear(i)
			if err := x.check(); err != nil {
				t.Fatal(err)
			}
		}
		if len(x.heads) != 0 {
			t.Errorf("seed %d: %d runs left after everything was cleared", seed, len(x.heads))
		}
	}
}

func TestIndexTruncate(t *testing.T) {
	x := NewIndex()
	hits := make([]int32, 2)
	sys, u1, u2 := string(make([]byte, 600)), "one", "two"
	a, b := chainOf(sys, u1), chainOf(sys, u2)
	x.Insert(0, a, 0)
	x.Insert(0, b, 0)
	x.Insert(1, a, 0)

	x.Truncate(0, a, 603) // all of it: nothing happens
	x.Truncate(0, chainOf("never seen"), 0)
	if x.Hits(b, hits); hits[0] != 603 {
		t.Errorf("slot 0 holds %d bytes, want 603", hits[0])
	}
	x.Truncate(0, a, 599) // in the shared system prompt: both conversations end there
	for _, chain := range [][]Block{a, b} {
		if x.Hits(chain, hits); hits[0] != 512 {
			t.Errorf("after truncation slot 0 holds %d bytes, want 512", hits[0])
		}
	}
	if x.Hits(a, hits); hits[1] != 603 {
		t.Errorf("slot 1 holds %d bytes, want 603: it reported nothing", hits[1])
	}
	x.Truncate(0, a, 0)
	if blocks, bytes := x.Held(0); blocks != 0 || bytes != 0 {
		t.Errorf("slot 0 holds %d blocks, %d bytes, want nothing", blocks, bytes)
	}
	if err := x.check(); err != nil {
		t.Error(err)
	}
}

func TestIndexCapacity(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	x := NewIndex()
	for range 40 {
		x.Insert(0, chainOf(text(rnd, 2560)), 0)
	}
	x.SetCapacity(0, 10_240)
	if _, bytes := x.Held(0); bytes != 10_240 {
		t.Errorf("holds %d bytes, want 10240", bytes)
	}
	// A prompt that is larger than the endpoint leaves its head, not its tail.
	big := chainOf(text(rnd, 25_600))
	x.Insert(0, big, 0)
	hits := make([]int32, 1)
	if x.Hits(big, hits); hits[0] != 10_240 {
		t.Errorf("holds %d bytes of a prompt beyond its capacity, want the first 10240", hits[0])
	}
	if err := x.check(); err != nil {
		t.Error(err)
	}
}

func TestIndexHitsIgnoresSlotsBeyond(t *testing.T) {
	x := NewIndex()
	a := chainOf("hello")
	x.Insert(4095, a, 0)
	x.Insert(1, a, 0)
	hits := []int32{9, 9}
	if x.Hits(a, hits); hits[0] != 0 || hits[1] != 5 {
		t.Errorf("hits %v, want [0 5]", hits)
	}
	x.Hits(nil, hits)
	if hits[1] != 0 {
		t.Error("an empty chain is held by nobody")
	}
}

func TestRegret(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	x := NewIndex()
	x.SetCapacity(0, 1<<20)
	prompts := make([][]Block, 64)
	for i := range prompts {
		prompts[i] = chainOf(text(rnd, 64<<10))
	}
	// Every prompt comes back after it was evicted: the cache is a quarter of what is used.
	now := time.Duration(0)
	for range 4 {
		for _, p := range prompts {
			now += time.Second / 10
			x.Insert(0, p, now)
		}
	}
	if got := x.Regret(); got < 0.5 {
		t.Errorf("regret %.2f with a thrashing cache, want over 0.5", got)
	}
	// Prompts that never return: what is evicted is not missed.
	for range 900 {
		now += time.Second / 10
		x.Insert(0, chainOf(text(rnd, 64<<10)), now)
	}
	if got := x.Regret(); got > 0.05 {
		t.Errorf("regret %.2f with unique prompts, want under 0.05", got)
	}
	x.Insert(0, prompts[0], now+time.Hour)
	if got := x.Regret(); got != 0 {
		t.Errorf("regret %.2f an hour later, want 0", got)
	}
	if got := NewIndex().Regret(); got != 0 {
		t.Errorf("regret %.2f of an empty index, want 0", got)
	}
}

// TestIndexMemory: 100 MB of unique prompts over 4 endpoints of unknown capacity
// cost less than 20 MB, whether they are long or one line each.
func TestIndexMemory(t *testing.T) {
	for _, size := range []int{300, 4 << 10, 100 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			before := heap()
			x := NewIndex()
			var h Hasher
			buf, n := make([]byte, size), 0
			rnd := rand.New(rand.NewPCG(5, 5))
			for total := 0; total < 100<<20; total += size {
				for i := 0; i+8 <= size; i += 64 {
					for j := range 8 {
						buf[i+j] = byte(rnd.Uint32())
					}
				}
				h.Reset()
				h.Write(buf)
				x.Insert(n%4, h.Blocks(1, nil), time.Duration(n))
				n++
			}
			used := float64(heap()-before) / (1 << 20)
			blocks, bytes := x.Held(0)
			t.Logf("%d prompts: %.1f MB; one endpoint holds %d blocks, %.1f MB of text", n, used, blocks, float64(bytes)/(1<<20))
			if used > 20 {
				t.Errorf("the index takes %.1f MB, want under 20", used)
			}
			runtime.KeepAlive(x)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// fill gives slots a shared system prompt of 10 kB and conversations of their own.
func fill(slots int) (*Index, [][]Block) {
	rnd := rand.New(rand.NewPCG(6, 6))
	x := NewIndex()
	var chains [][]Block
	systems := []string{text(rnd, 10_000), text(rnd, 3_000), text(rnd, 30_000)}
	for slot := range slots {
		for range 40 {
			messages := []string{systems[rnd.IntN(len(systems))]}
			for range 1 + rnd.IntN(6) {
				messages = append(messages, text(rnd, 100+rnd.IntN(1500)))
			}
			for turn := 2; turn <= len(messages); turn += 2 {
				x.Insert(slot, chainOf(messages[:turn]...), time.Duration(turn))
			}
			chains = append(chains, chainOf(messages...))
		}
	}
	return x, chains
}

func TestHitsAllocatesNothing(t *testing.T) {
	x, chains := fill(20)
	hits := make([]int32, 20)
	i := 0
	if n := testing.AllocsPerRun(200, func() {
		x.Hits(chains[i%len(chains)], hits)
		i++
	}); n != 0 {
		t.Errorf("Hits allocates %v times", n)
	}
}

// BenchmarkHits is part of every pick: the budget of a pick at 100 endpoints is 5 us.
func BenchmarkHits(b *testing.B) {
	for _, slots := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(slots), func(b *testing.B) {
			x, chains := fill(slots)
			hits := make([]int32, slots)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.Hits(chains[i%len(chains)], hits)
				i++
			}
		})
	}
}

// BenchmarkInsert touches known conversations: the common case of a next turn. Budget: 1 us, 0 allocations.
func BenchmarkInsert(b *testing.B) {
	x, chains := fill(100)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		x.Insert(i%100, chains[i%len(chains)], time.Duration(i))
		i++
	}
}

// BenchmarkInsertNew sends new conversations to endpoints that are full: what is
// added and what is forgotten balance. Budget: 50 ns per block, since the pool waits for it.
func BenchmarkInsertNew(b *testing.B) {
	for _, n := range []int{40, 8192} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rnd := rand.New(rand.NewPCG(1, 1))
			x, chain, hash := NewIndex(), make([]Block, n), rnd.Uint64()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				for j := range chain {
					hash = hash*6364136223846793005 + 1442695040888963407
					chain[j] = Block{Hash: hash, End: int32(BlockBytes * (j + 1))}
				}
				x.Insert(i%4, chain, time.Duration(i))
				i++
			}
		})
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	f.Fuzz(func(t *testing.T, ops []byte) {
		x := NewIndex()
		hits := make([]int32, 3)
		for i := 0; i+3 < len(ops); i += 4 {
			slot := int(ops[i] % 3)
			var messages []string
			for _, m := range []byte{ops[i+1] & 3, ops[i+1] >> 6, ops[i+2] & 7} {
				messages = append(messages, string(make([]byte, 1+int(m)*150)))
			}
			chain := chainOf(messages[:1+int(ops[i+2]>>4)%3]...)
			switch ops[i+3] % 5 {
			case 0, 1:
				x.Insert(slot, chain, time.Duration(i))
				if x.Hits(chain, hits); x.slots[slot].limit() > 1<<20 && hits[slot] != chain[len(chain)-1].End {
					t.Fatalf("holds %d bytes of what was just sent, want all %d", hits[slot], chain[len(chain)-1].End)
				}
			case 2:
				x.Truncate(slot, chain, int32(ops[i+3])*8)
				if x.Hits(chain, hits); hits[slot] > int32(ops[i+3])*8 {
					t.Fatalf("holds %d bytes after truncation to %d", hits[slot], int32(ops[i+3])*8)
				}
			case 3:
				x.SetCapacity(slot, int64(ops[i+3])*20)
			case 4:
				x.Clear(slot)
			}
			if err := x.check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestChainsMakeTheSameIndex: what Chains tells of a slot, inserted elsewhere in the opposite order, gives the same knowledge and the
// same order of forgetting.
func TestChainsMakeTheSameIndex(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	x := NewIndex()
	x.SetCapacity(0, 100_000)
	for i := range 3000 {
		n := 1 + rnd.IntN(40)
		c := make([]Block, n)
		h := rnd.Uint64N(5)
		for k := range c {
			if rnd.IntN(8) == 0 {
				h = h*31 + rnd.Uint64N(3)
			}
			h = mix(h, uint64(k))
			c[k] = Block{Hash: h, End: int32(256 * (k + 1))}
		}
		x.Insert(i%2, c, time.Duration(i))
		if i%97 == 0 {
			x.Truncate(0, c, int32(rnd.IntN(5000)))
		}
	}
	var chains [][]Block
	x.Chains(0, func(c []Block) bool { chains = append(chains, slices.Clone(c)); return true })
	y := NewIndex()
	y.SetCapacity(0, 100_000)
	for i := len(chains) - 1; i >= 0; i-- {
		y.Insert(0, chains[i], time.Hour)
	}
	for capacity := int64(100_000); capacity > 0; capacity -= 9_000 {
		x.SetCapacity(0, capacity)
		y.SetCapacity(0, capacity)
		bx, sx := x.Held(0)
		by, sy := y.Held(0)
		if bx != by || sx != sy || bx == 0 {
			t.Fatalf("within %d bytes: %d blocks and %d bytes here, %d and %d there", capacity, bx, sx, by, sy)
		}
		for _, c := range chains {
			var hx, hy [1]int32
			x.Hits(c, hx[:])
			y.Hits(c, hy[:])
			if hx != hy {
				t.Fatalf("within %d bytes: a chain of %d blocks is held to %d here and %d there", capacity, len(c), hx[0], hy[0])
			}
		}
	}
}
