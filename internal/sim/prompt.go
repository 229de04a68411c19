package sim

import "pointsman.dev/pointsman/internal/prefix"

// bytesPerToken is what every token of a simulated prompt weighs. The gateway knows bytes, the engines know tokens.
const bytesPerToken = 4

// Part is a piece of a prompt or an answer. Prompts that begin with the same Parts begin with the same text.
type Part struct {
	ID     uint64
	Tokens int
}

// Tokens returns the tokens of parts.
func Tokens(parts []Part) int {
	n := 0
	for _, p := range parts {
		n += p.Tokens
	}
	return n
}

// mixed is the finalizer of SplitMix64 over two words.
func mixed(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// appendChain cuts a prompt as the gateway does: every 256 bytes and at every boundary of a part.
func appendChain(dst []prefix.Block, parts []Part) []prefix.Block {
	h, end := uint64(1), int32(0)
	for _, p := range parts {
		bytes := p.Tokens * bytesPerToken
		for off := 0; off < bytes; off += prefix.BlockBytes {
			n := min(prefix.BlockBytes, bytes-off)
			h = mixed(mixed(h, p.ID), uint64(off))
			end += int32(n)
			dst = append(dst, prefix.Block{Hash: h, End: end})
		}
	}
	return dst
}

// appendHashes cuts prompt and answer as an engine does: every block of tokens, whatever part it is of.
func appendHashes(dst []uint64, parts []Part, answer Part, block int) []uint64 {
	h, pos := uint64(1), 0
	for i := range len(parts) + 1 {
		p := answer
		if i < len(parts) {
			p = parts[i]
		}
		for next := (pos/block + 1) * block; next <= pos+p.Tokens; next += block {
			dst = append(dst, mixed(mixed(h, p.ID), uint64(next-pos)))
		}
		pos += p.Tokens
		h = mixed(mixed(h, p.ID), uint64(p.Tokens))
	}
	return dst
}
