package engine

import "time"

// Seq is one sequence (a request with n answers is n sequences). The caller fills the first group and must not touch the Seq
// from Add until its last Output or Abort; then it may reuse it for another Add. Give the prompt either as Tokens or as Hashes.
type Seq struct {
	ID   string // a label for the caller; the engine does not read it
	Data any    // anything for the caller; the engine does not read it

	Tokens []uint32 // prompt token ids; read during Add only
	Answer []uint32 // token ids to "sample"; beyond its end the engine draws ids that depend on all earlier tokens and the salt only

	// Hashes are precomputed chained hashes of the full blocks of the prompt and, when they go on, of prompt plus answer:
	// Hashes[i] identifies tokens [0, (i+1)*BlockSize). Blocks beyond its end are unique to this Seq. Used when Tokens is nil.
	Hashes       []uint64
	PromptTokens int // prompt length with Hashes; with Tokens it is set by Add

	MaxTokens int    // longest answer, >= 1; 0 or more than the window leaves = what the window leaves
	StopAfter int    // the model ends the answer by itself after so many tokens (finish reason stop); 0 = never
	Salt      uint64 // sequences with different salts share no block (cache_salt, adapter name)
	Adapter   int32  // LoRA adapter number for Config.MaxLoras; 0 = none
	Priority  int32  // with Config.Priority: lower goes first
	NoCache   bool   // do not look the prefix up (prompt_logprobs, skip_reading_prefix_cache); blocks are still stored

	seqState
}

// Reason says why a sequence ended; None while it has not.
type Reason uint8

// Reasons as vLLM spells them in finish_reason and request_success.
const (
	None    Reason = iota
	Stop           // the model ended the answer
	Length         // MaxTokens or the window was reached
	Aborted        // ended by Pause(PauseAbort)
)

// String returns vLLM's word, "" for None.
func (r Reason) String() string { return [...]string{"", "stop", "length", "abort"}[r] }

// Output is one token of one sequence, or the end of a sequence without a token (Aborted).
type Output struct {
	Seq      *Seq
	Token    uint32 // sampled id; always 0 for a Seq given by Hashes without Answer
	Index    int    // 0 for the first token of the answer; -1 when there is no token
	First    bool   // this is the first token
	Finished Reason
	Cached   int // prompt tokens found in the cache at the first admission (usage.cached_tokens)
}

// Step is what one scheduling pass decided to run.
type Step struct {
	ID       uint64        // counts from 1
	Duration time.Duration // by Config.Profile; 0 for an empty step
	Prefill  int           // prompt (or recomputed) tokens in this step
	Decodes  int           // sequences that compute one token after their first
	Context  int64         // context tokens of the decodes, including the token computed
	Admitted int           // sequences that entered the batch, resumed ones included
	Evicted  int           // sequences preempted in this pass
	Empty    bool          // nothing runs: the model server's extra pass that publishes the gauges after aborts
}

// EventKind says what happened to cache blocks.
type EventKind uint8

// Kinds of BlockEvent.
const (
	BlockStored   EventKind = iota // Count full blocks of Seq from block index First were registered
	BlockRemoved                   // the block Hash was evicted
	BlocksCleared                  // the whole cache was emptied
)

// BlockEvent is one change of the block cache (vLLM's BlockStored, BlockRemoved, AllBlocksCleared).
type BlockEvent struct {
	Kind   EventKind
	Seq    *Seq   // BlockStored only; use Seq.BlockHash for the hashes
	First  int    // BlockStored: index of the first block
	Count  int    // BlockStored: number of blocks, > 0
	Parent uint64 // BlockStored: hash of the block before First, 0 for none
	Hash   uint64 // BlockRemoved
}

// Stats are the gauges as of the last finished step and the counters as the model server books them; both move only when a
// step finishes. Counters never fall.
type Stats struct {
	Steps uint64

	Running     int     // num_requests_running, requests in prefill included
	Waiting     int     // num_requests_waiting = WaitingCapacity + WaitingDeferred
	Capacity    int     // num_requests_waiting_by_reason{capacity}
	Deferred    int     // num_requests_waiting_by_reason{deferred}
	UsedBlocks  int     // blocks held by running requests
	CacheBlocks int     // blocks with a registered hash, in use or free
	KVUsage     float64 // kv_cache_usage_perc = UsedBlocks/(Blocks-1), [0,1]

	Queries     uint64 // prefix_cache_queries: tokens, booked at the first admission
	Hits        uint64 // prefix_cache_hits: tokens, booked at the first admission
	Prompt      uint64 // prompt_tokens: booked at the first token
	PromptLocal uint64 // prompt_tokens_by_source{local_compute}: booked at the first token
	PromptHit   uint64 // prompt_tokens_by_source{local_cache_hit}, prompt_tokens_cached: booked at the first token
	Generated   uint64 // generation_tokens
	Preemptions uint64 // num_preemptions: booked when the victim next emits a token
	DoneStop    uint64 // request_success{stop}
	DoneLength  uint64 // request_success{length}
	DoneAbort   uint64 // request_success{abort}: Pause(PauseAbort) only, never a client's abort

	RefusedQueue   uint64 // admission_rejections of MaxQueuedReqs; moves at once
	RefusedBacklog uint64 // admission_rejections of MaxQueuedTokens; moves at once

	// What no model server exports, for reports of a simulation.
	Preempted  uint64        // preemptions when they happen
	Prefilled  uint64        // tokens computed in prefill, recomputed ones included
	Recomputed uint64        // of these, computed again after a preemption
	Evicted    uint64        // cached blocks evicted
	Busy       time.Duration // sum of all step durations
}
