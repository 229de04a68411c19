package pool

// How much of a window a prompt fills, as far as can be said before the engine counts.

// Tokens returns how many tokens r's prompt likely has in this pool, and how many it has at least, almost certainly. Images
// and sounds count nothing, since what they come to is the model's own affair.
func (p *Pool) Tokens(r *Request) (likely, least int) {
	text := r.PromptBytes - r.MediaBytes
	if r.TokenIDs {
		return text / 4, text / 4
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a, b := p.estimate.Tokens(text-r.WideBytes, r.WideBytes)
	return int(a), int(b)
}

// CountsOutput reports whether the engines of this pool were seen to refuse a prompt that fits together with the output that
// it asked for: newer ones cut the output short instead.
func (p *Pool) CountsOutput() bool { return p.countsOutput.Load() }

// Refused tells the pool that its engine refused r for length, under a window of so many tokens.
func (p *Pool) Refused(r *Request, window int) {
	likely, _ := p.Tokens(r)
	if r.MaxTokens > 0 && r.MaxTokens <= window && 2*likely < window && likely+r.MaxTokens > window {
		p.countsOutput.Store(true)
	}
}

// Overflows reports whether another pool may take requests while this one is full.
func (p *Pool) Overflows() bool { return p.overflow.Load() }
