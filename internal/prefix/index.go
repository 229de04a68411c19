package prefix

import "time"

// DefaultCapacity is the bound in prompt bytes for an endpoint whose capacity is
// not known: two million tokens at four bytes each, as on a large accelerator.
const DefaultCapacity = 8 << 20

// An Index remembers which endpoint holds which blocks. It is not safe for
// concurrent use.
type Index struct{}

// NewIndex returns an empty index.
func NewIndex() *Index { return &Index{} }

// SetCapacity bounds what slot is thought to hold to bytes of prompt text: the
// endpoint's KV capacity in tokens times the bytes per token. Zero or less means
// unknown: DefaultCapacity. What exceeds the new bound is forgotten at once.
func (x *Index) SetCapacity(slot int, bytes int64) {}

// Hits sets hits[slot], for every slot below len(hits), to the number of bytes of
// the chain's leading blocks that slot holds. It allocates nothing.
func (x *Index) Hits(chain []Block, hits []int32) { clear(hits) }

// Insert notes that chain was sent to slot, as most recently used, and returns
// the bytes that slot forgot to make room.
func (x *Index) Insert(slot int, chain []Block, now time.Duration) (evicted int64) { return 0 }

// Truncate forgets the blocks of chain that end beyond heldBytes, and all that
// continues them, for slot: the engine reported that it held no more.
func (x *Index) Truncate(slot int, chain []Block, heldBytes int32) {}

// Clear forgets everything that slot holds: it restarted, slept or went away.
func (x *Index) Clear(slot int) {}

// Held reports how many blocks, and how many prompt bytes, slot is thought to hold.
func (x *Index) Held(slot int) (blocks int, bytes int64) { return 0, 0 }

// Regret is the share, in [0,1], of the recently evicted blocks that were asked
// for again after no endpoint held them any more. Zero when little was evicted.
func (x *Index) Regret() float64 { return 0 }
