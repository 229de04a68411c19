package peers

import (
	"errors"
	"math"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
)

// dictionarySize is how many blocks both ends of a stream remember, in the order in which they were sent.
const dictionarySize = 1 << 16

// dictionary is the blocks that were sent on a stream lately, which later chains refer to: of a conversation only the new turn is
// sent. Both ends keep the same one, because both add the same blocks in the same order. The zero value is empty.
type dictionary struct {
	nodes []node
	next  uint64            // number of the next block, less 1: blocks are numbered from 1
	at    map[uint64]uint64 // sender only: hash -> number
}

// node is a block and its place in its chain. A chain can be referred to as long as its first block is remembered, for the
// others came later.
type node struct {
	hash         uint64
	parent, root uint64
	end, depth   int32
}

var errChain = errors.New("reading a chain: it does not fit what was sent before")

// node returns block number id, nil when it or the start of its chain was forgotten.
func (d *dictionary) node(id uint64) *node {
	if id == 0 || id > d.next || id+dictionarySize <= d.next {
		return nil
	}
	n := &d.nodes[(id-1)%dictionarySize]
	if n.root+dictionarySize <= d.next {
		return nil
	}
	return n
}

// add appends a block behind parent, which is 0 for the first of a chain, and returns its number.
func (d *dictionary) add(hash uint64, end int32, parent, root uint64, depth int32) uint64 {
	n := node{hash: hash, end: end, parent: parent, root: root, depth: depth}
	if i := d.next % dictionarySize; i < uint64(len(d.nodes)) {
		if d.at != nil && d.at[d.nodes[i].hash] == d.next+1-dictionarySize {
			delete(d.at, d.nodes[i].hash)
		}
		d.nodes[i] = n
	} else {
		d.nodes = append(d.nodes, n)
	}
	d.next++
	if d.at != nil {
		d.at[hash] = d.next
	}
	return d.next
}

// encode returns chain with what the other end remembers left out. It is nil for an empty chain.
func (d *dictionary) encode(chain []prefix.Block) *wire.Chain {
	if len(chain) == 0 {
		return nil
	}
	if d.at == nil {
		d.at = map[uint64]uint64{}
	}
	known, fresh := 0, len(chain) // hashes are chained: where one is known, all before it are
	for known < fresh {
		mid := int(uint(known+fresh) >> 1)
		if n := d.node(d.at[chain[mid].Hash]); n != nil && int(n.depth) == mid+1 { // hashes that collide stand elsewhere
			known = mid + 1
		} else {
			fresh = mid
		}
	}
	c := &wire.Chain{}
	parent, root, end := uint64(0), d.next+1, int32(0)
	if known > 0 {
		parent = d.at[chain[known-1].Hash]
		n := d.node(parent)
		root, end = n.root, n.end
		c.Known = uint32(d.next + 1 - parent)
	}
	if known < len(chain) {
		c.Hashes = make([]uint64, 0, len(chain)-known)
	}
	for i, b := range chain[known:] {
		c.Hashes = append(c.Hashes, b.Hash)
		if b.End-end != prefix.BlockBytes {
			c.Odd = append(c.Odd, uint32(i), uint32(b.End-end))
		}
		end = b.End
		parent = d.add(b.Hash, b.End, parent, root, int32(known+i+1))
	}
	return c
}

// decode returns the whole chain in a slice of its own. After an error the two ends do not agree any more.
func (d *dictionary) decode(c *wire.Chain) ([]prefix.Block, error) {
	var last node
	parent, root := uint64(0), d.next+1
	if c.GetKnown() > 0 {
		if uint64(c.GetKnown()) > d.next {
			return nil, errChain
		}
		parent = d.next + 1 - uint64(c.GetKnown())
		n := d.node(parent)
		if n == nil {
			return nil, errChain
		}
		last, root = *n, n.root
	}
	hashes, odd := c.GetHashes(), c.GetOdd()
	if int(last.depth)+len(hashes) > pool.MaxChain || len(odd)%2 != 0 {
		return nil, errChain
	}
	chain := make([]prefix.Block, int(last.depth)+len(hashes))
	for id, i := parent, int(last.depth)-1; i >= 0; i-- {
		n := &d.nodes[(id-1)%dictionarySize]
		chain[i] = prefix.Block{Hash: n.hash, End: n.end}
		id = n.parent
	}
	end := int64(last.end)
	for i, h := range hashes {
		size := int64(prefix.BlockBytes)
		if len(odd) > 0 && int(odd[0]) == i {
			size, odd = int64(odd[1]), odd[2:]
		}
		if end += size; size == 0 || end > math.MaxInt32 {
			return nil, errChain
		}
		depth := last.depth + int32(i) + 1
		chain[depth-1] = prefix.Block{Hash: h, End: int32(end)}
		parent = d.add(h, int32(end), parent, root, depth)
	}
	if len(odd) > 0 {
		return nil, errChain
	}
	return chain, nil
}
