package engine

// Finish ends the step in flight and returns its outputs in batch order. The slice is valid until the next Finish. A step that
// is not the one in flight returns nil.
func (e *Engine) Finish(st Step) []Output {
	if !e.inFlight || st.ID != e.step.ID {
		return nil
	}
	e.inFlight = false
	e.outputs = e.outputs[:0]
	keep := e.running[:0]
	for _, s := range e.running {
		s.computed += s.scheduled
		emits := s.scheduled > 0 && s.computed == s.total
		s.scheduled = 0
		if emits && e.emit(s) != None {
			e.freeBlocks(s)
			e.forget(s)
			continue
		}
		keep = append(keep, s)
	}
	clear(e.running[len(keep):])
	e.running = keep
	if e.pauseNow {
		e.stopRunning()
	}
	for _, s := range e.ended {
		e.live.DoneAbort++
		e.outputs = append(e.outputs, Output{Seq: s, Index: -1, Finished: Aborted, Cached: s.cached})
	}
	e.ended = e.ended[:0]
	e.publish()
	return e.outputs
}

// emit samples one token of s and books it.
func (e *Engine) emit(s *Seq) Reason {
	t := s.sample(e)
	out := Output{Seq: s, Token: t, Index: s.outputs, First: s.outputs == 0, Cached: s.cached}
	if out.First {
		e.backlog -= s.PromptTokens
		e.live.Prompt += uint64(s.PromptTokens)
		e.live.PromptHit += uint64(s.cached)
		e.live.PromptLocal += uint64(s.PromptTokens - s.cached)
	}
	s.outputs++
	e.live.Generated++
	e.live.Preemptions += uint64(s.preemptions)
	s.preemptions = 0
	switch {
	case s.StopAfter > 0 && s.outputs >= s.StopAfter && s.StopAfter <= s.maxOut:
		out.Finished = Stop
		e.live.DoneStop++
	case s.outputs >= s.maxOut:
		out.Finished = Length
		e.live.DoneLength++
	default:
		s.push(e, t)
	}
	e.outputs = append(e.outputs, out)
	return out.Finished
}
