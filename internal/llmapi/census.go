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

// count adds p. Any split gives the same numbers. Eight bytes are looked at in one word; each lane of equal counts up to 255 words
// before the lanes are summed.
func (c *census) count(p []byte) {
	const (
		ones = 0x0101010101010101
		high = 0x80 * ones
		low  = ^uint64(high)
	)
	last := uint64(c.last)
	for len(p) >= 8 {
		part := p[:min(len(p)&^7, 255*8)]
		p = p[len(part):]
		c.same += len(part)
		differ := uint64(0)
		for len(part) >= 8 {
			w := binary.LittleEndian.Uint64(part)
			part = part[8:]
			d := w ^ (w<<8 | last)
			differ += (d&low + low | d) & high >> 7
			if w&high != 0 {
				c.wide += bits.OnesCount64(w & high)
			}
			last = w >> 56
		}
		const even = 0x00ff00ff00ff00ff
		c.same -= int((differ&even + differ>>8&even) * 0x0001000100010001 >> 48)
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
