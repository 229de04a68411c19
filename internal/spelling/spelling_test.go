package spelling

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "pool", 4}, {"pool", "pool", 0}, {"pool", "pools", 1}, {"polo", "pool", 1}, {"ppol", "pool", 1}, {"limit", "timid", 2},
		{"kitten", "sitting", 3}, {strings.Repeat("a", Most), strings.Repeat("a", Most), 0}, {strings.Repeat("a", Most+1), "a", Most + 1},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%.20q, %.20q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := Distance(c.b, c.a); got != c.want {
			t.Errorf("Distance(%.20q, %.20q) = %d, want %d", c.b, c.a, got, c.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Distance("max_num_seqs", "max_num_sesq") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
