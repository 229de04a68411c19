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
		draw := func() (x Text, tokens int) {
			x = Text{Plain: 400 + rnd.IntN(100000), Wide: rnd.IntN(30000), Same: rnd.IntN(30000)}
			return x, int(x.guess() * ratio * (0.8 + 0.4*rnd.Float64()))
		}
		for range 200 {
			e.Observe(draw())
		}
		over, sum := 0, 0.0
		const n = 5000
		for range n {
			x, tokens := draw()
			likely, least := e.Tokens(x)
			if least > float64(tokens) {
				over++
			}
			if likely < least {
				t.Fatalf("likely %v below least %v", likely, least)
			}
			sum += least / float64(tokens)
			e.Observe(x, tokens)
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
		name    string
		text    Text
		counted float64
	}{
		{"English", Text{Plain: 43000, Wide: 0, Same: 1000}, 10000},
		{"code with deep indentation", Text{Plain: 36000, Wide: 0, Same: 14000}, 10000},
		{"Chinese, a modern tokenizer", Text{Plain: 0, Wide: 50000, Same: 0}, 10000},
		{"Chinese, an old one", Text{Plain: 0, Wide: 25000, Same: 0}, 10000},
		{"Russian", Text{Plain: 2000, Wide: 55000, Same: 0}, 10000},
		{"a page of spaces", Text{Plain: 4000, Same: 400000}, 10000},
		{"base64", Text{Plain: 20000, Wide: 0, Same: 0}, 10000},
	} {
		likely, least := e.Tokens(c.text)
		if least > c.counted || likely < c.counted/2.1 || likely > c.counted*1.7 {
			t.Errorf("%s: likely %.0f, least %.0f of %.0f", c.name, likely, least, c.counted)
		}
	}
	if _, least := e.Tokens(Text{}); least != 0 {
		t.Errorf("nothing has %v tokens at least", least)
	}
	e.Observe(Text{Plain: 4}, 60)              // a template's share
	e.Observe(Text{Plain: -5, Wide: -5}, 1000) // nonsense
	e.Observe(Text{Plain: 100}, -1000)         // nonsense
	if e.bias.n != 0 {
		t.Errorf("%v observations of nothing", e.bias.n)
	}
}
