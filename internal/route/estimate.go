package route

import "math"

// Estimator guesses how many tokens a prompt has from its bytes, and learns the tokenizer's habits from what engines count. The
// zero value knows nothing but what most tokenizers do. Not safe for concurrent use.
type Estimator struct {
	bias   mean // of log(counted/guessed)
	spread mean // of its distance from the bias
}

const (
	plainPerToken = 4.0  // bytes: English 4 to 4.5, code 3 to 3.5
	samePerToken  = 32.0 // bytes: indentation, rules of dashes; vocabularies have tokens for long runs
	widePerToken  = 3.6  // bytes: a Chinese character has 3 and is 0.6 to 1 token, a Cyrillic one 2 and a third of one
	sureAfter     = 20   // observations
	unsure        = 0.5  // spread until then, in log
	leastSpread   = 0.05 // no prompt is like the mean
	sureSpreads   = 3    // how far below the guess a prompt is certain not to be
	leastObserved = 64   // tokens: what a template adds outweighs shorter prompts
)

// Text is what a prompt is made of, in bytes. Tokenizers make different things of each kind.
type Text struct {
	Plain int // below 0x80
	Same  int // of any kind, equal to the byte before
	Wide  int // above 0x7f
}

// Observe records a prompt of which the engine counted tokens. Prompts of fewer than 64 tokens say nothing and are ignored.
func (e *Estimator) Observe(t Text, tokens int) {
	guess := t.guess()
	if tokens < leastObserved || guess <= 0 {
		return
	}
	off := within(math.Log(float64(tokens)/guess), -3, 3, 0)
	e.spread.add(math.Abs(off-e.bias.value), poolGain)
	e.bias.add(off, poolGain)
}

// Tokens returns how many tokens a prompt likely has, and how many it has at least, almost certainly.
func (e *Estimator) Tokens(t Text) (likely, least float64) {
	likely = t.guess() * math.Exp(e.bias.value)
	spread := unsure
	if e.bias.n >= sureAfter {
		spread = leastSpread + sureSpreads*e.spread.value
	}
	return likely, likely * math.Exp(-spread)
}

func (t Text) guess() float64 {
	return float64(max(0, t.Plain))/plainPerToken + float64(max(0, t.Wide))/widePerToken + float64(max(0, t.Same))/samePerToken
}
