package app

import (
	"slices"
	"testing"
)

// TestCrowdGone: memory is given back once for each crowd, when it has been gone for two looks.
func TestCrowdGone(t *testing.T) {
	for _, c := range []struct {
		name     string
		inFlight []int
		want     []int // looks at which it is given back
	}{
		{"never many", []int{0, 20, 99, 0, 0, 0}, nil},
		{"a crowd, then nobody", []int{0, 1500, 0, 0, 0, 0}, []int{3}},
		{"a crowd, then a few", []int{1500, 300, 200, 200, 200}, []int{2}},
		{"it comes back at once", []int{1500, 0, 1500, 0, 0}, []int{4}},
		{"it halves", []int{1500, 750, 700, 800}, nil},
		{"one after the other", []int{400, 0, 0, 400, 0, 0}, []int{2, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w crowdWatch
			var got []int
			for i, n := range c.inFlight {
				if w.gone(n) {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("given back at looks %v, want %v", got, c.want)
			}
		})
	}
}
