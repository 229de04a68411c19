package route

import (
	"math/rand/v2"
	"testing"
)

// What is certain must be: over texts whose bytes per token scatter by a fifth around a tokenizer's own mean, the least is below
// the count all but never, and not uselessly low.
func TestEstimator(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, ratio := range []float64{0.6, 1, 1.7} { // counted tokens by what most tokenizers make
		var e Estimator
		draw := func() (ascii, wide, tokens int) {
			ascii, wide = 400+rnd.IntN(100000), rnd.IntN(30000)
			return ascii, wide, int(guess(ascii, wide) * ratio * (0.8 + 0.4*rnd.Float64()))
		}
		for range 200 {
			e.Observe(draw())
		}
		over, sum := 0, 0.0
		const n = 5000
		for range n {
			ascii, wide, tokens := draw()
			likely, least := e.Tokens(ascii, wide)
			if least > float64(tokens) {
				over++
			}
			if likely < least {
				t.Fatalf("likely %v below least %v", likely, least)
			}
			sum += least / float64(tokens)
			e.Observe(ascii, wide, tokens)
		}
		if over > n/200 {
			t.Errorf("ratio %v: the least was above the count in %d of %d", ratio, over, n)
		}
		if mean := sum / n; mean < 0.5 {
			t.Errorf("ratio %v: the least is %.2f of the count on average", ratio, mean)
		}
	}
}

// Before anything was learnt only a prompt of several times the window is certain not to fit it, in every script.
func TestEstimatorKnowsNothing(t *testing.T) {
	var e Estimator
	for _, c := range []struct {
		name        string
		ascii, wide int
		counted     float64
	}{
		{"English", 43000, 0, 10000},
		{"code with deep indentation", 50000, 0, 10000},
		{"Chinese, a modern tokenizer", 0, 50000, 10000},
		{"Chinese, an old one", 0, 25000, 10000},
		{"Russian", 2000, 55000, 10000},
		{"base64", 20000, 0, 10000},
	} {
		likely, least := e.Tokens(c.ascii, c.wide)
		if least > c.counted || likely < c.counted/2.1 || likely > c.counted*1.7 {
			t.Errorf("%s: likely %.0f, least %.0f of %.0f", c.name, likely, least, c.counted)
		}
	}
	if _, least := e.Tokens(0, 0); least != 0 {
		t.Errorf("nothing has %v tokens at least", least)
	}
	e.Observe(4, 0, 60)      // a template's share
	e.Observe(-5, -5, 1000)  // nonsense
	e.Observe(100, 0, -1000) // nonsense
	if e.bias.n != 0 {
		t.Errorf("%v observations of nothing", e.bias.n)
	}
}
