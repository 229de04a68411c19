package vllmsim

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Config describes one simulated server. DefaultConfig gives the values that the program starts with; in a Config built
// by hand a zero number means its default, while the booleans mean what they say (PrefixCaching false is off).
type Config struct {
	Model            []string      // served names; the first one is in every response and metric label
	Adapters         []string      // LoRA adapters of the first model, served beside it
	Root             string        // model path that /v1/models shows; "" = "/models/" + first name
	MaxModelLen      int           // context window in tokens
	MaxNumSeqs       int           // requests that run at the same time
	NumBlocks        int           // KV blocks, the null block included
	BlockSize        int           // tokens per KV block
	MaxBatchedTokens int           // token budget of one step
	Profile          string        // step-time profile, a name that internal/engine knows
	Speed            float64       // simulated seconds per real second (10 = ten times faster than the profile)
	PrefixCaching    bool          // reuse of KV blocks between requests
	MetricsStyle     string        // one of MetricsStyles: names, labels and order of /metrics, and the error shapes of that age
	MaxQueuedReqs    int           // waiting plus running requests before a 503; 0 = no limit
	MaxQueuedTokens  int           // prompt tokens in prefill before a 503; 0 = no limit
	APIKey           string        // bearer key of /v1 and /inference; "" = open
	ShutdownTimeout  time.Duration // drain after Terminate; 0 = open requests hang at once, as vLLM does
	KeepAlive        time.Duration // idle time after which a kept connection is closed; 0 = 5 s as uvicorn
	RequestIDHeaders bool          // echo x-request-id (vLLM: --enable-request-id-headers)
	RequestMetrics   bool          // metrics object in responses (vLLM: --enable-per-request-metrics)
	ScaleOut         bool          // render and generate routes (vLLM: --enable-scale-out)
	DevMode          bool          // sleep, pause, abort, reset routes (vLLM: VLLM_SERVER_DEV_MODE=1)
	LoadTracking     bool          // /load counts (vLLM: --enable-server-load-tracking)
	ToolParser       bool          // tool_choice auto (vLLM: --enable-auto-tool-choice --tool-call-parser)
	Multimodal       bool          // images in chat messages
	Pooling          bool          // also serve embeddings, pooling, classify, score and rerank
	Merge            float64       // share of tokens that wait for the next one while 4 or more requests run, [0,1); <0 = none
	Seed             uint64        // changes the generated text, nothing else
	Log              *slog.Logger  // nil = no log
}

// DefaultConfig is the configuration of a server that was started without flags, except for the model's name.
func DefaultConfig() Config {
	return Config{PrefixCaching: true, Pooling: true, RequestIDHeaders: true, DevMode: true, ScaleOut: true, ToolParser: true, Multimodal: true}.withDefaults()
}

// MetricsStyles are the values of Config.MetricsStyle, oldest first.
func MetricsStyles() []string { return []string{"vllm-0.8", "vllm-0.12", "current", "sglang"} }

func (c Config) withDefaults() Config {
	if len(c.Model) == 0 {
		c.Model = []string{"sim"}
	}
	setDefault(&c.Root, "/models/"+c.Model[0])
	setDefault(&c.MaxModelLen, 32768)
	setDefault(&c.MaxNumSeqs, 256)
	setDefault(&c.NumBlocks, 27648)
	setDefault(&c.BlockSize, 16)
	setDefault(&c.MaxBatchedTokens, 8192)
	setDefault(&c.Profile, "llama-3.1-8b-h100")
	setDefault(&c.Speed, 1)
	setDefault(&c.MetricsStyle, "current")
	setDefault(&c.KeepAlive, 5*time.Second)
	setDefault(&c.Merge, 0.02)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) validate() error {
	switch {
	case c.MaxModelLen < 2:
		return fmt.Errorf("checking max-model-len %d: must be at least 2", c.MaxModelLen)
	case c.MaxNumSeqs < 1, c.BlockSize < 1, c.MaxBatchedTokens < 1:
		return fmt.Errorf("checking max-num-seqs, block-size, max-num-batched-tokens: must be at least 1")
	case c.NumBlocks < 2:
		return fmt.Errorf("checking num-blocks %d: must be at least 2, one block is the null block", c.NumBlocks)
	case (c.NumBlocks-1)*c.BlockSize < c.MaxModelLen:
		return fmt.Errorf("checking num-blocks %d: %d tokens of KV memory cannot hold one request of max-model-len %d",
			c.NumBlocks, (c.NumBlocks-1)*c.BlockSize, c.MaxModelLen)
	case !(c.Speed > 0):
		return fmt.Errorf("checking speed %v: must be above 0", c.Speed)
	case c.Merge >= 1:
		return fmt.Errorf("checking merge %v: must be below 1", c.Merge)
	case !slices.Contains(MetricsStyles(), c.MetricsStyle):
		return fmt.Errorf("checking metrics-style %q: must be one of %v", c.MetricsStyle, MetricsStyles())
	}
	return nil
}
