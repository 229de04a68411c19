package prefix

import "slices"

// A run is a piece of chain without a branch; see Index.
type run struct {
	blocks  []Block  // never empty; not shared for writing
	start   int32    // End of the block before the first
	holders []holder // sorted by slot, never empty once inserted

	parent, child *run // child: the first of the runs that continue this one
	prev, next    *run // siblings
}

// A holder is one slot that holds the first held blocks of a run, and the run's
// place in that slot's order of use.
type holder struct {
	slot         int32
	held         int32 // at least 1
	newer, older *run
}

const (
	keepRuns      = 64  // for reuse
	keepRunBlocks = 256 // longest block list that is kept with one
)

// newRun returns a run of a copy of blocks, held by nobody.
func (x *Index) newRun(blocks []Block) *run {
	var r *run
	if n := len(x.free); n > 0 {
		r, x.free = x.free[n-1], x.free[:n-1]
	} else {
		r = new(run)
	}
	if c := cap(r.blocks); c < len(blocks) || c > 2*len(blocks)+32 {
		r.blocks = make([]Block, 0, len(blocks))
	}
	r.blocks = append(r.blocks, blocks...)
	return r
}

// reuse keeps a run that nobody holds and nothing refers to.
func (x *Index) reuse(r *run) {
	if len(x.free) == keepRuns {
		return
	}
	blocks := r.blocks[:0]
	if cap(blocks) > keepRunBlocks {
		blocks = nil
	}
	*r = run{blocks: blocks, holders: r.holders[:0]}
	x.free = append(x.free, r)
}

// match returns how many of the run's leading blocks begin the chain, where the
// first does. Hashes are chained, so equality at i means equality before i.
func (r *run) match(chain []Block) int {
	n := min(len(r.blocks), len(chain))
	if r.blocks[n-1].Hash == chain[n-1].Hash {
		return n
	}
	lo, hi := 1, n-1 // lo blocks match; block hi does not
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if r.blocks[mid].Hash == chain[mid].Hash {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// end is the number of prompt bytes up to the end of the run's first n blocks.
func (r *run) end(n int) int32 {
	if n == 0 {
		return r.start
	}
	return r.blocks[n-1].End
}

// size is the number of bytes of the blocks from from up to to.
func (r *run) size(from, to int) int32 { return r.end(to) - r.end(from) }

// find returns the position of slot among the holders.
func (r *run) find(slot int) (int, bool) {
	lo, hi := 0, len(r.holders)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if r.holders[mid].slot < int32(slot) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(r.holders) && r.holders[lo].slot == int32(slot)
}

// holder returns the entry of slot, nil when it holds nothing of the run. The
// pointer is valid until a holder is added or removed.
func (r *run) holder(slot int) *holder {
	if i, ok := r.find(slot); ok {
		return &r.holders[i]
	}
	return nil
}

func (r *run) addHolder(slot int) *holder {
	i, _ := r.find(slot)
	if r.holders == nil {
		r.holders = make([]holder, 0, 1) // most runs have one holder for life
	}
	r.holders = slices.Insert(r.holders, i, holder{slot: int32(slot)})
	return &r.holders[i]
}

func (r *run) removeHolder(slot int) {
	i, _ := r.find(slot)
	r.holders = slices.Delete(r.holders, i, i+1)
}

// chain appends the whole chain up to the first n blocks of r.
func (r *run) chain(dst []Block, n int) []Block {
	var path []*run
	for up := r.parent; up != nil; up = up.parent {
		path = append(path, up)
	}
	for i := len(path) - 1; i >= 0; i-- {
		dst = append(dst, path[i].blocks...)
	}
	return append(dst, r.blocks[:n]...)
}

// shrink keeps the first n blocks, and gives memory back when much of it is unused:
// a run that is being evicted shrinks step by step.
func (r *run) shrink(n int) {
	r.blocks = r.blocks[:n]
	if cap(r.blocks) > 2*n+keepRunBlocks {
		r.blocks = append(make([]Block, 0, n), r.blocks...)
	}
}

func (r *run) attach(parent *run) {
	r.parent = parent
	if parent == nil {
		return
	}
	r.start = parent.end(len(parent.blocks))
	if r.next = parent.child; r.next != nil {
		r.next.prev = r
	}
	parent.child = r
}

func (r *run) detach() {
	if r.parent != nil && r.parent.child == r {
		r.parent.child = r.next
	}
	if r.prev != nil {
		r.prev.next = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	}
	r.parent, r.prev, r.next = nil, nil, nil
}

// split makes the blocks of r from m on a run of their own that continues r. In
// each slot's order the new run comes right behind r.
func (x *Index) split(r *run, m int) {
	// Both parts are copied: either may outlive the other by hours.
	tail := &run{blocks: slices.Clip(slices.Clone(r.blocks[m:])), start: r.end(m), child: r.child, parent: r}
	for c := tail.child; c != nil; c = c.next {
		c.parent = tail
	}
	r.blocks, r.child = slices.Clip(slices.Clone(r.blocks[:m])), tail
	x.heads[tail.blocks[0].Hash] = tail
	for i := range r.holders {
		h := &r.holders[i]
		if int(h.held) <= m {
			continue
		}
		s := &x.slots[h.slot]
		tail.holders = append(tail.holders, holder{slot: h.slot, held: h.held - int32(m), newer: r, older: h.older})
		if h.older != nil {
			h.older.holder(int(h.slot)).newer = tail
		} else {
			s.oldest = tail
		}
		h.held, h.older = int32(m), tail
		s.runs++
	}
}

// unlink takes r out of the slot's order of use.
func (s *slot) unlink(slot int, r *run) {
	h := r.holder(slot)
	if h.newer != nil {
		h.newer.holder(slot).older = h.older
	} else {
		s.newest = h.older
	}
	if h.older != nil {
		h.older.holder(slot).newer = h.newer
	} else {
		s.oldest = h.newer
	}
	h.newer, h.older = nil, nil
}

// pushNewest puts r, which must not be linked, at the front of the slot's order.
func (s *slot) pushNewest(slot int, r *run) {
	h := r.holder(slot)
	if h.older = s.newest; h.older != nil {
		h.older.holder(slot).newer = r
	} else {
		s.oldest = r
	}
	s.newest = r
}
