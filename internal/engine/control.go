package engine

// PauseMode says what Pause does with requests that run.
type PauseMode uint8

// Modes of Pause as in vLLM's /pause?mode=.
const (
	PauseWait  PauseMode = iota // running ones finish, nothing is admitted
	PauseKeep                   // everything stands still; running ones are preempted and the cache is cleared
	PauseAbort                  // running and waiting ones end with reason Aborted
)

// Pause stops the engine as mode says, after the step in flight; new sequences are queued and show in no gauge, because
// nothing steps. The ends of PauseAbort come out of the next Finish (an empty step when none is in flight).
func (e *Engine) Pause(mode PauseMode) {
	e.pausing, e.mode = true, mode
	e.pauseNow = mode != PauseWait
	if !e.inFlight && e.pauseNow {
		e.stopRunning()
	}
}

// Paused reports whether a pause has taken full effect: with PauseWait, that the last running sequence has ended.
func (e *Engine) Paused() bool {
	return e.pausing && !e.inFlight && !e.pauseNow && (e.mode != PauseWait || len(e.running) == 0)
}

// Resume ends a pause or a sleep.
func (e *Engine) Resume() {
	e.pausing, e.pauseNow, e.asleep, e.sleepNext = false, false, false, false
}

// Sleep ends running and waiting sequences with reason Aborted as Pause(PauseAbort) does, clears the cache and stops the
// engine until Resume: sequences are queued and nothing moves, the gauges included (as /sleep?level=1).
func (e *Engine) Sleep() {
	e.pausing, e.mode, e.pauseNow, e.sleepNext = true, PauseAbort, true, true
	if !e.inFlight {
		e.stopRunning()
	}
}

// Asleep reports whether the engine sleeps.
func (e *Engine) Asleep() bool { return e.asleep }

// stopRunning carries out a pause or a sleep between two steps.
func (e *Engine) stopRunning() {
	e.pauseNow = false
	switch e.mode {
	case PauseKeep:
		for len(e.running) > 0 {
			last := len(e.running) - 1
			s := e.running[last]
			e.running = e.running[:last]
			e.preempt(s)
		}
		e.clearCache()
	case PauseAbort:
		e.endAll()
	}
	if e.sleepNext {
		e.sleepNext, e.asleep = false, true
		e.clearCache()
	}
}

func (e *Engine) endAll() {
	first := len(e.ended) // those of an earlier pause may still wait for their output
	e.ended = append(e.ended, e.running...)
	for s := e.waiting.head; s != nil; s = s.next {
		e.ended = append(e.ended, s)
	}
	for s := e.skipped.head; s != nil; s = s.next {
		e.ended = append(e.ended, s)
	}
	for _, s := range e.ended[first:] {
		e.end(s)
	}
}

// ResetPrefixCache empties the block cache; false, and nothing changes, while blocks are in use (as /reset_prefix_cache).
func (e *Engine) ResetPrefixCache() bool {
	if e.pool.used() > 0 {
		return false
	}
	e.clearCache()
	return true
}

func (e *Engine) clearCache() {
	e.pool.clear()
	if e.cfg.OnBlocks != nil {
		e.cfg.OnBlocks(BlockEvent{Kind: BlocksCleared})
	}
}

// CopyCache takes over what the block cache of another engine of the same block size holds, as if both loaded their KV memory from one
// store: as many blocks as fit, the latest used ones. It is for an engine that holds nothing; OnBlocks sees nothing of it.
func (e *Engine) CopyCache(from *Engine) {
	if !e.cfg.PrefixCaching || e.cfg.BlockSize != from.cfg.BlockSize || e.pool.used()+e.pool.cached > 0 {
		return
	}
	var hashes []uint64 // in the order in which they are evicted
	src := from.pool.blocks
	for i := src[0].next; i != 0; i = src[i].next {
		if src[i].cached {
			hashes = append(hashes, src[i].hash)
		}
	}
	for _, s := range from.running {
		for k := s.stored - 1; k >= 0; k-- { // as they become free: the end of a prompt first
			hashes = append(hashes, src[s.blocks[k]].hash)
		}
	}
	hashes = hashes[max(0, len(hashes)-(len(e.pool.blocks)-1)):]
	for _, h := range hashes {
		if e.pool.find(h) == 0 {
			i, _, _ := e.pool.take()
			e.pool.store(i, h)
			e.pool.release(i)
		}
	}
}
