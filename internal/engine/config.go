package engine

import "fmt"

// Config describes one engine. The zero value of a field means the default named there. Names in parentheses are vLLM's.
type Config struct {
	Blocks           int  // KV blocks including the null block (num_gpu_blocks), so Blocks-1 are usable; default 27648
	BlockSize        int  // tokens per block (block_size); default 16
	MaxNumSeqs       int  // requests that run at once (max_num_seqs); default 256
	MaxBatchedTokens int  // token budget of a step (max_num_batched_tokens); default 2048
	MaxModelLen      int  // window: prompt + output tokens (max_model_len); default and upper bound: what the usable blocks hold
	PrefixCaching    bool // reuse full blocks of earlier requests (enable_prefix_caching)

	LongPrefillThreshold int     // tokens that one request may prefill per step while it is not alone (long_prefill_token_threshold); 0 = no cap
	Watermark            float64 // share of all blocks kept free at an admission while something runs (watermark), [0,1)
	FirstChunkOnly       bool    // admit when the first chunk fits (scheduler_reserve_full_isl=false; the only behaviour before 0.19)
	Priority             bool    // order by Seq.Priority, lower first, instead of arrival (scheduling_policy=priority)
	MaxLoras             int     // distinct adapters in one step; a request beyond is deferred (max_loras); 0 = no limit
	AlignChunks          bool    // prefill chunks end on block boundaries (hybrid models, mamba_cache_mode=align)

	// AsyncScheduling: the next step is decided while one runs (async_scheduling), so that a sequence that arrives during a step
	// misses the one that follows. The model decides late and keeps only that effect.
	AsyncScheduling bool

	MaxQueuedReqs   int // refuse when so many requests wait or run (max_num_queued_reqs); 0 = no limit
	MaxQueuedTokens int // refuse while prompts in prefill hold so many tokens (max_num_queued_tokens); 0 = no limit

	Vocab   int     // sampled token ids are in [0, Vocab); default 32000
	Profile Profile // step times; the zero Profile makes every step instant

	// OnBlocks, when set, sees every change of the block cache in the order in which it happens, during the call that causes
	// it. A publisher sends what it collected when Finish returns: the model server's events leave with a step.
	OnBlocks func(BlockEvent)
}

// Validate reports the first setting that no engine would start with.
func (c Config) Validate() error {
	d := c.withDefaults()
	switch {
	case c.Blocks < 0 || d.Blocks < 2:
		return fmt.Errorf("checking engine blocks: %d is below 2 (one block is the null block)", c.Blocks)
	case d.BlockSize < 1:
		return fmt.Errorf("checking engine block size: %d is below 1", c.BlockSize)
	case d.MaxNumSeqs < 1:
		return fmt.Errorf("checking engine max num seqs: %d is below 1", c.MaxNumSeqs)
	case d.MaxBatchedTokens < 1:
		return fmt.Errorf("checking engine max batched tokens: %d is below 1", c.MaxBatchedTokens)
	case d.AlignChunks && d.MaxBatchedTokens < d.BlockSize:
		return fmt.Errorf("checking engine max batched tokens: %d is below the block size %d that chunks align to", d.MaxBatchedTokens, d.BlockSize)
	case c.MaxModelLen < 0 || c.MaxModelLen > (d.Blocks-1)*d.BlockSize:
		return fmt.Errorf("checking engine max model len: %d does not fit into %d usable blocks of %d tokens", c.MaxModelLen, d.Blocks-1, d.BlockSize)
	}
	return c.validateLimits()
}

func (c Config) validateLimits() error {
	switch {
	case c.Watermark < 0 || c.Watermark >= 1:
		return fmt.Errorf("checking engine watermark: %g is outside [0,1)", c.Watermark)
	case min(c.LongPrefillThreshold, c.MaxLoras, c.MaxQueuedReqs, c.MaxQueuedTokens, c.Vocab) < 0:
		return fmt.Errorf("checking engine limits: a negative value (0 = no limit)")
	}
	return nil
}

// withDefaults fills zero fields and bounds the window by the blocks, so that one request alone always fits.
func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Blocks, 27648)
	def(&c.BlockSize, 16)
	def(&c.MaxNumSeqs, 256)
	def(&c.MaxBatchedTokens, 2048)
	def(&c.Vocab, 32000)
	room := (c.Blocks - 1) * c.BlockSize
	if c.MaxModelLen == 0 || c.MaxModelLen > room {
		c.MaxModelLen = room
	}
	return c
}
