package engine

// block is one KV block. Free blocks form a doubly linked list in the order in which they will be taken; blocks with one hash
// form a ring in the order in which they were registered.
type block struct {
	hash             uint64
	prev, next       int32 // free list; block 0 (the null block, never handed out) is its head and end
	dupPrev, dupNext int32 // ring of blocks with this hash, itself when alone
	ref              int32 // running sequences that hold it
	cached           bool  // hash is registered
}

// blockPool owns the blocks: who holds them, which of them can be found by hash, and which is evicted next (kv block_pool.py).
type blockPool struct {
	blocks  []block
	byHash  map[uint64]int32 // first registered block of each hash
	free    int
	cached  int
	gains   uint64 // times that a look-up may have come to find one more block in use: registered, touched, or first of its ring
	evicted uint64 // evictions so far
}

func newBlockPool(n int) *blockPool {
	p := &blockPool{blocks: make([]block, n), byHash: make(map[uint64]int32, n)}
	for i := 1; i < n; i++ {
		p.pushBack(int32(i))
	}
	return p
}

func (p *blockPool) pushBack(i int32)  { p.link(i, p.blocks[0].prev, 0) }
func (p *blockPool) pushFront(i int32) { p.link(i, 0, p.blocks[0].next) }

func (p *blockPool) link(i, prev, next int32) {
	p.blocks[i].prev, p.blocks[i].next = prev, next
	p.blocks[prev].next, p.blocks[next].prev = i, i
	p.free++
}

func (p *blockPool) unlink(i int32) {
	b := &p.blocks[i]
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
}

// find returns the block registered first under h, 0 for none.
func (p *blockPool) find(h uint64) int32 { return p.byHash[h] }

// touch adds a holder; a free block leaves the free list and cannot be evicted.
func (p *blockPool) touch(i int32) {
	if p.blocks[i].ref == 0 {
		p.unlink(i)
		p.gains++
	}
	p.blocks[i].ref++
}

// take hands out the next free block (the caller checked free > 0). gone is the hash that it lost, when evicted.
func (p *blockPool) take() (i int32, gone uint64, evicted bool) {
	i = p.blocks[0].next
	p.unlink(i)
	b := &p.blocks[i]
	b.ref = 1
	if b.cached {
		gone, evicted = b.hash, true
		p.forget(i)
		p.evicted++
	}
	return i, gone, evicted
}

// release drops one holder. A block without holders becomes free: last in line when it can be hit, first when it cannot.
func (p *blockPool) release(i int32) {
	b := &p.blocks[i]
	b.ref--
	switch {
	case b.ref > 0:
	case b.cached:
		p.pushBack(i)
	default:
		p.pushFront(i)
	}
}

// store registers block i under h. Equal blocks are not merged: each stays until it is evicted itself.
func (p *blockPool) store(i int32, h uint64) {
	b := &p.blocks[i]
	b.hash, b.cached = h, true
	p.cached++
	p.gains++
	first, ok := p.byHash[h]
	if !ok {
		p.byHash[h] = i
		b.dupPrev, b.dupNext = i, i
		return
	}
	last := p.blocks[first].dupPrev
	b.dupPrev, b.dupNext = last, first
	p.blocks[last].dupNext, p.blocks[first].dupPrev = i, i
}

func (p *blockPool) forget(i int32) {
	b := &p.blocks[i]
	b.cached = false
	p.cached--
	if b.dupNext == i {
		delete(p.byHash, b.hash)
		return
	}
	p.blocks[b.dupPrev].dupNext, p.blocks[b.dupNext].dupPrev = b.dupNext, b.dupPrev
	if p.byHash[b.hash] == i {
		p.byHash[b.hash] = b.dupNext
		p.gains++
	}
}

// clear forgets every hash; free blocks keep their order.
func (p *blockPool) clear() {
	clear(p.byHash)
	for i := range p.blocks {
		p.blocks[i].cached = false
	}
	p.cached = 0
}

func (p *blockPool) used() int { return len(p.blocks) - 1 - p.free }
