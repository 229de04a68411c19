package prefix

import "time"

const (
	ghostRing = 8192 // remembered samples
	ghostOne  = 16   // one block of so many is remembered, chosen by its hash
	ghostAge  = 10 * time.Minute
	// ghostFloor damps the share while few blocks were evicted.
	ghostFloor = 64
)

// ghosts remembers a sample of the blocks that were evicted and nobody held any
// more, and which of them were asked for again.
type ghosts struct {
	ring     []ghost // ghostRing long once anything was evicted
	first, n int     // oldest, and how many
	where    map[uint64]int
	again    int
}

type ghost struct {
	hash uint64
	at   time.Duration
	back bool
}

func (g *ghosts) evicted(blocks []Block, now time.Duration) {
	for _, b := range blocks {
		if b.Hash%ghostOne != 0 {
			continue
		}
		if g.ring == nil {
			g.ring, g.where = make([]ghost, ghostRing), make(map[uint64]int)
		}
		if g.n == ghostRing {
			g.forget()
		}
		at := (g.first + g.n) % ghostRing
		g.ring[at] = ghost{hash: b.Hash, at: now}
		g.where[b.Hash] = at
		g.n++
	}
}

// forget takes the oldest ghost out of the count.
func (g *ghosts) forget() {
	old := g.ring[g.first]
	if old.back {
		g.again--
	} else if g.where[old.hash] == g.first {
		delete(g.where, old.hash)
	}
	g.first = (g.first + 1) % ghostRing
	g.n--
}

// asked notes that blocks which no endpoint holds were asked for.
func (g *ghosts) asked(blocks []Block, now time.Duration) {
	for g.n > 0 && now-g.ring[g.first].at > ghostAge {
		g.forget()
	}
	if g.n == 0 {
		return
	}
	for _, b := range blocks {
		if b.Hash%ghostOne != 0 {
			continue
		}
		if at, ok := g.where[b.Hash]; ok {
			delete(g.where, b.Hash)
			g.ring[at].back = true
			g.again++
		}
	}
}

func (g *ghosts) regret() float64 { return float64(g.again) / float64(max(g.n, ghostFloor)) }
