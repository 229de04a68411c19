package pool

import "pointsman.dev/pointsman/internal/route"

// How much of a window a prompt fills, as far as can be said before the engine counts.

// Tokens returns how many tokens r's prompt likely has in this pool, and how many it has at least, almost certainly. Images
// and sounds count nothing, since what they come to is the model's own affair.
func (p *Pool) Tokens(r *Request) (likely, least int) {
	if r.TokenIDs {
		n := (r.PromptBytes - r.MediaBytes) / 4
		return n, n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a, b := p.estimate.Tokens(r.text())
	return int(a), int(b)
}

func (r *Request) text() route.Text {
	return route.Text{Plain: r.PromptBytes - r.MediaBytes - r.WideBytes - r.SameBytes, Same: r.SameBytes, Wide: r.WideBytes}
}

// Counted tells the pool how many tokens another pool's engine counted in r's prompt. A pool that is passed over would never
// find out otherwise that its estimates are wrong.
func (p *Pool) Counted(r *Request, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe(r, tokens)
}

// observe learns from the tokens that an engine counted in r's prompt. The mutex is held.
func (p *Pool) observe(r *Request, tokens int) {
	if !r.TokenIDs && r.MediaBytes == 0 && r.N <= 1 { // of several prompts the sum says nothing of one
		p.estimate.Observe(r.text(), tokens)
	}
}

// CountsOutput reports whether the engines of this pool were seen to refuse a prompt that fits together with the output that
// it asked for: newer ones cut the output short instead.
func (p *Pool) CountsOutput() bool { return p.countsOutput.Load() }

// Refused tells the pool that its engine refused r for length, under a window of so many tokens.
func (p *Pool) Refused(r *Request, window int) {
	likely, _ := p.Tokens(r)
	if r.MaxTokens > 0 && r.MediaBytes == 0 && r.MaxTokens <= window && 2*likely < window && likely+r.MaxTokens > window {
		p.countsOutput.Store(true)
	}
}

// Overflows reports whether another pool may take requests while this one is full.
func (p *Pool) Overflows() bool { return p.overflow.Load() }
