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

func TestName(t *testing.T) {
	known := []string{"Org/Model-1.5", "tiny", "llama-3.1-8b-instruct", "qwen3-32b"}
	for name, want := range map[string]string{
		"org/model-1.5": "Org/Model-1.5", "Model-1.5": "Org/Model-1.5", "Other/Model-1.5": "Org/Model-1.5", "tinny": "tiny", "tniy": "tiny", "tin": "tiny",
		"llama-3.1-8b": "", "llama-31-8b-instruct": "llama-3.1-8b-instruct", "qwen3-32B": "qwen3-32b", "gpt-4o": "", "": "", "x": "", strings.Repeat("t", 5000): "",
	} {
		if got := Name(name, known); got != want {
			t.Errorf("%.20q: %q, want %q", name, got, want)
		}
	}
}

func TestWord(t *testing.T) {
	words := []string{"auto", "prefixes", "prefix", "least_request"}
	for text, want := range map[string]string{
		"auto": "auto", "atuo": "auto", "prefix": "prefix", "prefixx": "prefix", "pre": "prefixes", "pr": "", "perfix": "prefix", "least-request": "least_request", "weighted": "", "x": "", "": "",
	} {
		if got := Word(text, words); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
