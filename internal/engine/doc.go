// Package engine is a model of one vLLM V1 engine: continuous batching with a token budget, chunked prefill, full-prompt
// admission with head-of-line blocking, recompute preemption of the request admitted last, and a block cache of full, chained
// blocks with LRU eviction. It decides exactly what the real scheduler decides (vllm/v1/core/sched/scheduler.py and
// kv_cache_manager.py; compared with recordings of vLLM 0.32.0 in the tests) and prices each step with a linear profile.
//
// It does not know time, tokenizers, HTTP or text. The caller owns the clock: it calls Schedule, waits Step.Duration in
// whatever time it lives in, and calls Finish, which hands out the tokens of the step:
//
//	for {
//		step, ok := e.Schedule()
//		if !ok { wait for the next Add, Abort or Resume; continue }
//		wait(step.Duration)
//		for _, out := range e.Finish(step) { ... }
//	}
//
// An Engine has no locks and starts no goroutine: one owner at a time. Add, Abort, Pause, Resume and Reset may be called
// between Schedule and Finish (the model server receives them while a step runs); what they change takes effect before the
// next Schedule decides.
package engine
