package scrape

import (
	"math"

	"pointsman.dev/pointsman/internal/pool"
)

// Report puts what the page said into the shape that the pool reads. Counts and counters of data-parallel ranks
// are summed; KV use is that of the worst rank, because a request that lands there waits whatever the others
// have left; block size and window are those of the first rank.
func (p *Page) Report() pool.Report {
	r := pool.EmptyReport()
	r.Engine, r.Skipped, r.Ranks = p.engine, p.skipped, max(1, p.engineRanks())
	r.Running = p.sum(roleRunning)
	r.WaitingCapacity, r.WaitingDeferred = p.sum(roleWaitingCapacity), p.sum(roleWaitingDeferred)
	r.Waiting = p.sum(roleWaiting)
	if r.Waiting < 0 && r.WaitingCapacity >= 0 {
		r.Waiting = r.WaitingCapacity + max(0, r.WaitingDeferred)
	}
	r.KVUsage = p.kvUsage()
	r.BlockSize, r.NumBlocks = p.first(roleBlockSize), p.sum(roleBlocks)
	r.CapacityTokens = p.capacity(r)
	r.MaxNumSeqs = p.sum(roleMaxNumSeqs)
	r.MaxModelLen = p.window()
	r.PrefixCaching, r.Asleep = p.caching(), p.asleep()
	r.ProcessStart = p.first(roleProcessStart)
	r.GenerationTokens, r.Preemptions = p.sum(roleGenerationTokens), p.sum(rolePreemptions)
	p.hits(&r)
	return r
}

// hits fills the counters that hit rates are made of.
func (p *Page) hits(r *pool.Report) {
	r.PromptTokens, r.ComputedPromptTokens = p.sum(rolePromptTokens), p.sum(roleComputedTokens)
	r.Queries, r.Hits = p.either(roleQueries, roleQueriesOld), p.either(roleHits, roleHitsOld)
	cached, prefillCached := p.sum(roleCachedTokens), p.sum(rolePrefillCached)
	reused, missed := p.sum(roleReusedBlocks), p.sum(roleMissedBlocks)
	switch {
	case r.Queries >= 0:
	case r.ComputedPromptTokens >= 0 && prefillCached >= 0:
		r.Hits, r.Queries = prefillCached, prefillCached+r.ComputedPromptTokens
		r.PromptTokens = r.Queries
	case reused >= 0 && missed >= 0:
		block := max(1, r.BlockSize)
		r.Hits, r.Queries = reused*block, (reused+missed)*block
	case cached >= 0 && r.PromptTokens >= cached:
		r.Hits, r.Queries = cached, r.PromptTokens
	}
	if r.ComputedPromptTokens < 0 && cached >= 0 && r.PromptTokens >= cached {
		r.ComputedPromptTokens = r.PromptTokens - cached
	}
}

func (p *Page) sum(what role) float64 {
	total, seen := 0.0, false
	for i := range p.ranks {
		if v := p.ranks[i].v[what]; !math.IsNaN(v) {
			total, seen = total+v, true
		}
	}
	if !seen {
		return pool.Unknown
	}
	return total
}

func (p *Page) either(what, old role) float64 {
	if v := p.sum(what); v >= 0 {
		return v
	}
	return p.sum(old)
}

func (p *Page) first(what role) float64 {
	for i := range p.ranks {
		if v := p.ranks[i].v[what]; !math.IsNaN(v) {
			return v
		}
	}
	return pool.Unknown
}

func (p *Page) kvUsage() float64 {
	worst := float64(pool.Unknown)
	for i := range p.ranks {
		v := p.ranks[i].v[roleKVUsage]
		if math.IsNaN(v) {
			v = p.ranks[i].v[roleKVUsageOld]
		}
		if used, of := p.ranks[i].v[roleKVTokensUsed], p.ranks[i].v[roleKVTokensMax]; math.IsNaN(v) && of > 0 {
			v = used / of
		}
		if !math.IsNaN(v) {
			worst = max(worst, min(v, 1))
		}
	}
	return worst
}

func (p *Page) capacity(r pool.Report) float64 {
	if v := p.sum(roleCapacityTokens); v > 0 {
		return v
	}
	if v := p.sum(roleKVTokensMax); v > 0 {
		return v
	}
	if r.NumBlocks > 0 && r.BlockSize > 0 {
		return r.NumBlocks * r.BlockSize
	}
	return pool.Unknown
}

func (p *Page) window() float64 {
	for i := range p.ranks {
		if v := p.ranks[i].length; v > 0 {
			return v
		}
	}
	return pool.Unknown
}

// caching is off only if every rank that says something says so.
func (p *Page) caching() *bool {
	var on, off bool
	for i := range p.ranks {
		on, off = on || p.ranks[i].caching > 0, off || p.ranks[i].caching < 0
	}
	if !on && !off {
		return nil
	}
	return &on
}

// asleep: one sleeping rank is enough, since a request that lands there hangs.
func (p *Page) asleep() bool {
	for i := range p.ranks {
		if p.ranks[i].v[roleAwake] == 0 {
			return true
		}
	}
	return false
}

// engineRanks counts the ranks that run requests; series without a rank (process start) make one more entry.
func (p *Page) engineRanks() int {
	n := 0
	for i := range p.ranks {
		if !math.IsNaN(p.ranks[i].v[roleRunning]) {
			n++
		}
	}
	return n
}
