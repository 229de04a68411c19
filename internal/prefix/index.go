package prefix

import (
	"sort"
	"time"
)

// DefaultCapacity is the bound in prompt bytes for an endpoint whose capacity is
// not known: two million tokens at four bytes each, as on a large accelerator.
const DefaultCapacity = 8 << 20

// MaxCapacity bounds the capacity of an endpoint in prompt bytes, some 250 million
// tokens, and so what is remembered of it to about 100 MB.
const MaxCapacity = 1 << 30

// runBytes bounds the number of runs of a slot to its capacity divided by this, so
// that a flood of one-line prompts costs bounded memory. Such short runs are worth
// nothing to a cache.
const runBytes = 512

// An Index remembers which endpoint holds which blocks. It is not safe for
// concurrent use.
//
// It is a tree of runs: a run is a piece of chain in which no remembered prompt
// ends or branches. For each slot a run knows how many of its leading blocks the
// slot holds, so blocks are stored once for all slots. Two invariants carry
// everything: a slot that holds a block holds every block before it (prefix
// closure), and in a slot's order of use a run is always more recent than the runs
// that continue it, so forgetting the oldest first never breaks the closure.
type Index struct {
	heads map[uint64]*run // by the hash of the run's first block
	slots []slot
	path  []*run // scratch of Insert
	free  []*run // a few for reuse: evictions and inserts balance in the steady state
	ghost ghosts
}

type slot struct {
	capacity       int64 // 0: DefaultCapacity
	bytes          int64
	blocks, runs   int
	newest, oldest *run
}

func (s *slot) limit() int64 {
	if s.capacity <= 0 {
		return DefaultCapacity
	}
	return s.capacity
}

func (s *slot) over() bool {
	return s.bytes > s.limit() || s.runs > max(64, int(s.limit()/runBytes))
}

// NewIndex returns an empty index.
func NewIndex() *Index { return &Index{heads: make(map[uint64]*run)} }

// SetCapacity bounds what slot is thought to hold to bytes of prompt text: the
// endpoint's KV capacity in tokens times the bytes per token. Zero or less means
// unknown: DefaultCapacity. More than MaxCapacity is MaxCapacity. What exceeds the
// new bound is forgotten at once.
func (x *Index) SetCapacity(slot int, bytes int64) {
	x.slot(slot).capacity = min(max(bytes, 0), MaxCapacity)
	x.evict(slot, 0, false)
}

// Hits sets hits[slot], for every slot below len(hits), to the number of bytes of
// the chain's leading blocks that slot holds. It allocates nothing.
func (x *Index) Hits(chain []Block, hits []int32) {
	clear(hits)
	for len(chain) > 0 {
		r := x.heads[chain[0].Hash]
		if r == nil {
			return
		}
		m := r.match(chain)
		for i := range r.holders {
			h := &r.holders[i]
			if h.slot < int32(len(hits)) {
				hits[h.slot] = chain[min(int(h.held), m)-1].End
			}
		}
		if m < len(r.blocks) {
			return
		}
		chain = chain[m:]
	}
}

// Insert notes that chain was sent to slot, as most recently used at now, and
// returns the bytes that slot forgot to make room.
func (x *Index) Insert(slot int, chain []Block, now time.Duration) (evicted int64) {
	if len(chain) == 0 {
		return 0
	}
	s := x.slot(slot)
	rest := x.walk(chain)
	x.ghost.asked(rest, now)
	for _, r := range x.path {
		x.hold(s, slot, r)
	}
	if len(rest) > 0 {
		x.grow(s, slot, rest)
	}
	// Deepest first, so that the root of the chain becomes the most recent.
	for i := len(x.path) - 1; i >= 0; i-- {
		s.unlink(slot, x.path[i])
		s.pushNewest(slot, x.path[i])
	}
	clear(x.path)
	return x.evict(slot, now, true)
}

// Truncate forgets the blocks of chain that end beyond heldBytes, and all that
// continues them, for slot: the engine reported that it held no more.
func (x *Index) Truncate(slot int, chain []Block, heldBytes int32) {
	if slot >= len(x.slots) {
		return
	}
	for len(chain) > 0 {
		r := x.heads[chain[0].Hash]
		if r == nil || r.holder(slot) == nil {
			return
		}
		m := r.match(chain)
		keep := sort.Search(m, func(i int) bool { return chain[i].End > heldBytes })
		if keep < m {
			x.trim(slot, r, keep)
			return
		}
		if m < len(r.blocks) {
			return
		}
		chain = chain[m:]
	}
}

// Clear forgets everything that slot holds: it restarted, slept or went away. It
// costs what the slot holds.
func (x *Index) Clear(slot int) {
	if slot >= len(x.slots) {
		return
	}
	s := &x.slots[slot]
	for s.oldest != nil {
		x.drop(slot, s.oldest, 0)
	}
}

// Chains calls f with chains that slot holds, the most recently used first, until f returns false. Inserted in the opposite
// order elsewhere they give the same knowledge and the same order of use. f must not keep the chain.
func (x *Index) Chains(slot int, f func(chain []Block) bool) {
	if slot >= len(x.slots) {
		return
	}
	var chain []Block
	for r := x.slots[slot].newest; r != nil; r = r.holder(slot).older {
		h := r.holder(slot)
		if h.older != nil && h.older.parent == r {
			continue // inserting what continues it puts it right before that
		}
		chain = r.chain(chain[:0], int(h.held))
		if !f(chain) {
			return
		}
	}
}

// Held reports how many blocks, and how many prompt bytes, slot is thought to hold.
func (x *Index) Held(slot int) (blocks int, bytes int64) {
	if slot >= len(x.slots) {
		return 0, 0
	}
	return x.slots[slot].blocks, x.slots[slot].bytes
}

// Regret is the share, in [0,1], of the recently evicted blocks that were asked
// for again after no endpoint held them any more. It is computed over the last
// 10 minutes, at most 128k blocks, and is damped towards zero while little was
// evicted.
func (x *Index) Regret() float64 { return x.ghost.regret() }

func (x *Index) slot(i int) *slot {
	for len(x.slots) <= i {
		x.slots = append(x.slots, slot{})
	}
	return &x.slots[i]
}

// walk follows the chain through the tree, leaves the runs it passes in x.path and
// returns what is left of the chain. A run in which the chain leaves is split.
func (x *Index) walk(chain []Block) (rest []Block) {
	x.path = x.path[:0]
	for len(chain) > 0 {
		r := x.heads[chain[0].Hash]
		if r == nil {
			break
		}
		m := r.match(chain)
		if m < len(r.blocks) {
			x.split(r, m)
		}
		x.path = append(x.path, r)
		chain = chain[m:]
	}
	return chain
}

// hold makes slot hold all of r.
func (x *Index) hold(s *slot, slot int, r *run) {
	h := r.holder(slot)
	if h == nil {
		h = r.addHolder(slot)
		s.runs++
		s.pushNewest(slot, r)
	}
	if n := len(r.blocks) - int(h.held); n > 0 {
		s.blocks += n
		s.bytes += int64(r.size(int(h.held), len(r.blocks)))
		h.held = int32(len(r.blocks))
	}
}

// grow adds what no run covers: at the end of the path's last run when nothing
// else continues it and nobody else holds it, else as a run of its own.
func (x *Index) grow(s *slot, slot int, rest []Block) {
	var parent *run
	if n := len(x.path); n > 0 {
		parent = x.path[n-1]
	}
	if parent != nil && parent.child == nil && len(parent.holders) == 1 {
		parent.blocks = append(parent.blocks, rest...)
		x.hold(s, slot, parent)
		return
	}
	r := x.newRun(rest)
	r.attach(parent)
	x.heads[rest[0].Hash] = r
	x.path = append(x.path, r)
	x.hold(s, slot, r)
}

// evict forgets the least recently used blocks of slot until it is within bounds.
func (x *Index) evict(slot int, now time.Duration, regret bool) (evicted int64) {
	s := &x.slots[slot]
	for s.over() {
		r := s.oldest
		held := int(r.holder(slot).held)
		keep := 0
		if s.bytes > s.limit() {
			// The tail goes first, and no more of it than needed.
			excess, start := s.bytes-s.limit(), int64(r.end(held))
			keep = sort.Search(held, func(i int) bool { return start-int64(r.end(i+1)) < excess })
		}
		evicted += int64(r.size(keep, held))
		if regret && len(r.holders) == 1 {
			x.ghost.evicted(r.blocks[keep:held], now)
		}
		x.drop(slot, r, keep)
	}
	return evicted
}

// trim keeps only the first keep blocks of r for slot and forgets what continues
// them. The recursion is over r's children, deepest first, by an explicit walk: a
// conversation may be thousands of runs deep.
func (x *Index) trim(slot int, r *run, keep int) {
	if h := r.holder(slot); h == nil || int(h.held) <= keep {
		return
	}
	stack := []*run{r}
	for at := 0; at < len(stack); at++ {
		for c := stack[at].child; c != nil; c = c.next {
			if c.holder(slot) != nil {
				stack = append(stack, c)
			}
		}
	}
	for i := len(stack) - 1; i > 0; i-- {
		x.drop(slot, stack[i], 0)
	}
	x.drop(slot, r, keep)
}

// drop makes slot hold only the first keep blocks of r, where no run that
// continues r may be held by slot, and frees the blocks that nobody holds.
func (x *Index) drop(slot int, r *run, keep int) {
	s := &x.slots[slot]
	h := r.holder(slot)
	s.blocks -= int(h.held) - keep
	s.bytes -= int64(r.size(keep, int(h.held)))
	h.held = int32(keep)
	if keep == 0 {
		s.unlink(slot, r)
		r.removeHolder(slot)
		s.runs--
	}
	most := 0
	for i := range r.holders {
		most = max(most, int(r.holders[i].held))
	}
	switch {
	case most == 0:
		delete(x.heads, r.blocks[0].Hash)
		r.detach()
		x.reuse(r)
	case most < len(r.blocks):
		r.shrink(most)
	}
}
