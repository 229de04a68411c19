package llmapi

import (
	"encoding/binary"
	"math/bits"
)

// A census counts the bytes of a body by what tokenizers make of them. It looks at the bytes as they came, so that it costs a
// fraction of reading them; escapes and what is no prompt make it a little wrong. The zero value is ready.
type census struct {
	wide int  // bytes above 0x7f
	same int  // bytes of text that equal the one before
	last byte // the byte before
}

// count adds p. Any split gives the same numbers.
func (c *census) count(p []byte) {
	const (
		high = 0x8080808080808080
		low  = ^uint64(high)
	)
	last := uint64(c.last)
	for len(p) >= 8 {
		w := binary.LittleEndian.Uint64(p)
		differs := w ^ (w<<8 | last)
		c.same += 8 - bits.OnesCount64((differs&low+low|differs)&high)
		if w&high != 0 {
			c.wide += bits.OnesCount64(w & high)
		}
		last = w >> 56
		p = p[8:]
	}
	c.last = byte(last)
	for _, b := range p {
		if b == c.last {
			c.same++
		}
		c.wide += int(b >> 7)
		c.last = b
	}
}
