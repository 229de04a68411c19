package prefix

import (
	"math"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// keepBlocks bounds the memory that a Hasher keeps over Reset: the blocks of a
// prompt of about 1 MB.
const keepBlocks = 4096

// A Hasher cuts and hashes one prompt. The zero value is ready to use.
type Hasher struct {
	blocks []Block // without the seed
	chain  uint64  // hash of the last block
	end    int64   // bytes in blocks
	n      int     // bytes in buf
	buf    [BlockBytes]byte
}

// Reset forgets the prompt and keeps the memory, unless it was an unusually long
// prompt.
func (h *Hasher) Reset() {
	if cap(h.blocks) > keepBlocks {
		h.blocks = nil
	}
	h.blocks, h.chain, h.end, h.n = h.blocks[:0], 0, 0, 0
}

// Len is the number of prompt bytes so far.
func (h *Hasher) Len() int { return int(h.end) + h.n }

// Write adds canonical prompt bytes. Any split of the same bytes into calls gives
// the same blocks.
func (h *Hasher) Write(p []byte) {
	if h.n > 0 {
		k := copy(h.buf[h.n:], p)
		h.n += k
		p = p[k:]
		if h.n < BlockBytes {
			return
		}
		h.add(xxhash.Sum64(h.buf[:]), BlockBytes)
		h.n = 0
	}
	for len(p) >= BlockBytes {
		h.add(xxhash.Sum64(p[:BlockBytes]), BlockBytes)
		p = p[BlockBytes:]
	}
	h.n = copy(h.buf[:], p)
}

// WriteByte adds one canonical prompt byte. The error is always nil.
func (h *Hasher) WriteByte(c byte) error {
	h.buf[h.n] = c
	h.n++
	if h.n == BlockBytes {
		h.add(xxhash.Sum64(h.buf[:]), BlockBytes)
		h.n = 0
	}
	return nil
}

// Cut ends the current block: a message boundary. Without bytes since the last
// boundary it does nothing.
func (h *Hasher) Cut() {
	if h.n > 0 {
		h.add(xxhash.Sum64(h.buf[:h.n]), h.n)
		h.n = 0
	}
}

// Opaque adds something that is part of the prompt but not text, such as an
// image: kind tells images from sounds, hash identifies its content, and
// nominalBytes (1 or more) is how many prompt bytes it is worth. It is a block of
// its own.
func (h *Hasher) Opaque(kind byte, hash uint64, nominalBytes int) {
	h.Cut()
	h.add(mix(hash, 0x9e3779b97f4a7c15*(uint64(kind)+1)), max(nominalBytes, 1))
}

// Blocks appends the chain to dst and returns it. What follows the last boundary
// is a block too. seed mixes in what precedes the text wherever it stood in the
// request (tools, salt, adapter): equal seed and equal text give equal hashes,
// different seeds give different ones.
func (h *Hasher) Blocks(seed uint64, dst []Block) []Block {
	dst, _ = h.BlocksAfter(seed, 0, dst)
	return dst
}

// BlocksAfter is Blocks for a text that continues another one of base bytes whose
// chain ended in the hash seed. It also returns the hash that this chain ends in:
// the seed of what continues it.
func (h *Hasher) BlocksAfter(seed uint64, base int, dst []Block) ([]Block, uint64) {
	h.Cut()
	last := seed
	dst = slices.Grow(dst, len(h.blocks))
	for _, b := range h.blocks {
		end := int64(b.End) + int64(base)
		if end > math.MaxInt32 {
			break
		}
		last = mix(b.Hash, seed)
		dst = append(dst, Block{Hash: last, End: int32(end)})
	}
	return dst, last
}

func (h *Hasher) add(sum uint64, n int) {
	h.chain = mix(sum, h.chain)
	h.end += int64(n)
	if h.end > math.MaxInt32 {
		return // no end can say where it lies: it has no identity, and neither has what follows
	}
	if len(h.blocks) == cap(h.blocks) {
		h.blocks = slices.Grow(h.blocks, max(32, len(h.blocks))) // double: append alone would copy a long chain ten times
	}
	h.blocks = append(h.blocks, Block{Hash: h.chain, End: int32(h.end)})
}

// mix combines two hashes, in this order, to one.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, bits.RotateLeft64(b, 29)^0xe7037ed1a0b428db)
	x := hi ^ lo ^ bits.RotateLeft64(a, 17) ^ b
	x *= 0xff51afd7ed558ccd
	return x ^ x>>32
}
