package pool

import "time"

// Unknown is the value of a number in a Report that the endpoint did not say. Missing is never zero.
const Unknown = -1

// Report is what an endpoint said of itself in one reading of its metrics page, summed over its
// data-parallel ranks. Fields that the page lacks hold Unknown, or nil.
type Report struct {
	Engine string // vllm, sglang, llama.cpp, tgi, trtllm, triton; "" when the page names none

	Running         float64 // requests in execution
	Waiting         float64 // requests in the engine's queue, whatever for
	WaitingCapacity float64 // of these, waiting for memory or a free sequence
	WaitingDeferred float64 // of these, waiting for something else (adapter, grammar, remote cache)
	KVUsage         float64 // share of KV blocks that live requests hold, [0,1]; of the worst rank

	BlockSize      float64 // tokens per KV block
	NumBlocks      float64 // usable KV blocks, summed over ranks
	CapacityTokens float64 // KV capacity in tokens, summed over ranks; counts what hybrids really hold
	MaxModelLen    float64 // tokens
	MaxNumSeqs     float64 // sequences at once, summed over ranks
	Ranks          int     // data-parallel ranks seen, at least 1

	PrefixCaching *bool // the engine's own setting
	Asleep        bool  // weights are offloaded: requests would hang

	ProcessStart float64 // Unix seconds

	// Counters since the engine's start.
	Queries              float64 // prompt tokens looked up in the prefix cache
	Hits                 float64 // of these, found
	PromptTokens         float64 // prompt tokens of requests that reached their first token
	ComputedPromptTokens float64 // of these, computed and not taken from a cache
	GenerationTokens     float64
	Preemptions          float64

	Skipped int           // lines that were malformed, NaN or absurd
	Took    time.Duration // how long the reading took
}

// EmptyReport returns a Report in which everything is unknown.
func EmptyReport() Report {
	return Report{
		Running: Unknown, Waiting: Unknown, WaitingCapacity: Unknown, WaitingDeferred: Unknown, KVUsage: Unknown,
		BlockSize: Unknown, NumBlocks: Unknown, CapacityTokens: Unknown, MaxModelLen: Unknown, MaxNumSeqs: Unknown,
		ProcessStart: Unknown, Queries: Unknown, Hits: Unknown, PromptTokens: Unknown,
		ComputedPromptTokens: Unknown, GenerationTokens: Unknown, Preemptions: Unknown, Ranks: 1,
	}
}

// Model is one entry of an endpoint's model list.
type Model struct {
	ID          string `json:"id"`
	Root        string `json:"root,omitempty"`
	Parent      string `json:"parent,omitempty"` // base model of an adapter
	MaxModelLen int    `json:"max_model_len,omitempty"`
	Created     int64  `json:"created,omitempty"`
	OwnedBy     string `json:"owned_by,omitempty"`
	Adapter     bool   `json:"adapter,omitempty"`
}

// Facts is what an endpoint says about itself that rarely changes.
type Facts struct {
	Models     []Model // nil: none were shown
	Version    string  // "" unknown
	MaxNumSeqs int     // sequences at once, over all ranks; 0 unknown
}
