package sim

import "pointsman.dev/pointsman/internal/prefix"

// occupy counts, for policies that ask for it, the distinct blocks that requests in flight hold on slot i: by is 1 when one comes
// and -1 when it goes.
func (g *gateway) occupy(i int, chain []prefix.Block, by int32) {
	if g.active == nil {
		return
	}
	m, start := g.active[i], int32(0)
	for _, b := range chain {
		n := m[b.Hash] + by
		if n <= 0 {
			delete(m, b.Hash)
		} else {
			m[b.Hash] = n
		}
		switch {
		case by > 0 && n == 1:
			g.unique[i] += int64(b.End - start)
		case by < 0 && n == 0:
			g.unique[i] -= int64(b.End - start)
		}
		start = b.End
	}
}
