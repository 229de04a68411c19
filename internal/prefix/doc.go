// Package prefix gives prompts an identity and remembers which endpoint holds
// which part of them.
//
// A prompt's canonical bytes are cut into blocks of 256 bytes and, besides, at
// every message boundary, so that a short first turn behind a long shared system
// prompt is a block of its own and the next turn of that conversation is
// recognised to the byte. Blocks are chained: the hash of block i identifies the
// whole prompt up to the end of block i, so equal hashes mean equal prefixes.
//
// Hasher cuts and hashes one prompt while its bytes arrive. Index remembers the
// chains that were sent to each endpoint (a "slot", a small number that the owner
// hands out), bounded by what the endpoint can really keep, oldest first and tail
// first, as the engines evict.
//
// The package knows no JSON, no tokens and no time of its own; it does no I/O and
// starts no goroutine. Neither Hasher nor Index is safe for concurrent use: a
// Hasher belongs to one request, an Index to the lock of its pool.
package prefix

// BlockBytes is the largest number of canonical prompt bytes in one block. A
// message boundary ends a block early.
const BlockBytes = 256

// A Block is one step of a prompt's chain.
type Block struct {
	// Hash identifies the whole prompt from its start to the end of this block,
	// including the seed (what precedes the messages).
	Hash uint64
	// End is the number of prompt bytes up to the end of this block, cumulative
	// over the chain, so it grows with every block of a chain.
	End int32
}

// Common returns the bytes that two chains share from their start. A block's hash covers all before it, so the length is found
// by halving.
func Common(a, b []Block) int32 {
	lo, hi := 0, min(len(a), len(b))
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if a[mid].Hash == b[mid].Hash {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0
	}
	return a[lo-1].End
}
