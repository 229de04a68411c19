package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPromises: requests whose prompts are never computed leave nothing behind, in whatever order they go, and take nothing from
// those that are computed.
func TestPromises(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	for round := range 300 {
		x, list := NewIndex(), Promises{}
		texts := []string{text(rnd, 600), text(rnd, 900), text(rnd, 1200)}
		var open []*Promise
		var computed [][]Block
		for range 12 {
			var words []string
			for range 1 + rnd.IntN(3) {
				words = append(words, texts[rnd.IntN(3)])
			}
			p := &Promise{Chain: chainOf(words...), Credited: true}
			hits := make([]int32, 1)
			x.Hits(p.Chain, hits)
			p.Held = hits[0]
			x.Insert(0, p.Chain, 0)
			list.Add(p)
			open = append(open, p)
		}
		rnd.Shuffle(len(open), func(i, k int) { open[i], open[k] = open[k], open[i] })
		for _, p := range open {
			if rnd.IntN(3) == 0 {
				computed = append(computed, slices.Clone(p.Chain))
				p.Keep()
			} else {
				p.Break(x, 0)
			}
			p.Break(x, 0) // it has ended: nothing happens
		}
		want := NewIndex()
		for _, c := range computed {
			want.Insert(0, c, 0)
			hits := make([]int32, 1)
			if x.Hits(c, hits); hits[0] != c[len(c)-1].End {
				t.Fatalf("round %d: %d bytes are credited of the %d that were computed", round, hits[0], c[len(c)-1].End)
			}
		}
		got, _ := x.Held(0)
		if n, _ := want.Held(0); got != n || list != (Promises{}) {
			t.Fatalf("round %d: %d blocks are credited, %d were computed; open: %v", round, got, n, list)
		}
	}
}

// TestUnsure: what only an open request vouches for is a promise; what was there before it, or was computed since, is not.
func TestUnsure(t *testing.T) {
	shared, own := chainOf(text(rand.New(rand.NewPCG(1, 1)), 1024)), chainOf(text(rand.New(rand.NewPCG(1, 1)), 1024), "and a question of its own")
	var list Promises
	p := &Promise{Chain: shared, Credited: true}
	list.Add(p)
	all := shared[len(shared)-1].End
	if !list.Unsure(own, all) || list.Unsure(own, 0) {
		t.Error("a promise counts as held, or nothing as a promise")
	}
	p.Keep()
	if list.Unsure(own, all) {
		t.Error("what was computed counts as a promise")
	}
	list.Add(&Promise{Chain: shared, Held: all, Credited: true})
	if list.Unsure(own, all) {
		t.Error("what was there before counts as a promise")
	}
}
