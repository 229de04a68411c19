package prefix

// A Hasher cuts and hashes one prompt. The zero value is ready to use.
type Hasher struct {
	blocks []Block
}

// Reset forgets the prompt and keeps the memory.
func (h *Hasher) Reset() { h.blocks = h.blocks[:0] }

// Write adds canonical prompt bytes. Any split of the same bytes into calls gives
// the same blocks.
func (h *Hasher) Write(p []byte) { _ = p }

// Cut ends the current block: a message boundary. Without bytes since the last
// boundary it does nothing.
func (h *Hasher) Cut() {}

// Opaque adds something that is part of the prompt but not text, such as an
// image: kind tells images from sounds, hash identifies its content, and
// nominalBytes is how many prompt bytes it is worth. It is a block of its own.
func (h *Hasher) Opaque(kind byte, hash uint64, nominalBytes int) { _, _, _ = kind, hash, nominalBytes }

// Blocks appends the chain to dst and returns it. seed mixes in what precedes the
// text wherever it stood in the request (tools, salt, adapter): equal seed and
// equal text give equal hashes, different seeds give different ones.
func (h *Hasher) Blocks(seed uint64, dst []Block) []Block { _ = seed; return append(dst, h.blocks...) }
