package vllmsim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"

	"pointsman.dev/pointsman/internal/engine"
)

// Main is the program: it parses args (without the program's name), serves until the server has shut down, and returns the
// exit status. terminate delivers the signals that mean SIGTERM; a second one ends the program at once.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer, terminate <-chan struct{}) int {
	cfg, listen, err := parseFlags(args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2 // the flag package has said why
	}
	s, err := New(cfg)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "vllmsim:", err)
		return 2
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "vllmsim: opening", listen+":", err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "vllmsim serves %s at http://%s\n", strings.Join(cfg.Model, ", "), ln.Addr())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for first := true; ; first = false {
			select {
			case <-terminate:
			case <-ctx.Done():
				return
			}
			if !first {
				cancel()
				return
			}
			s.Terminate()
		}
	}()
	if err := s.Serve(ctx, ln); err != nil && !errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintln(stderr, "vllmsim:", err)
		return 1
	}
	return 0
}

// names is a flag value of comma-separated names.
type names struct{ list *[]string }

func (n names) String() string {
	if n.list == nil {
		return ""
	}
	return strings.Join(*n.list, ",")
}

func (n names) Set(v string) error {
	*n.list = nil
	for name := range strings.SplitSeq(v, ",") {
		if name = strings.TrimSpace(name); name != "" {
			*n.list = append(*n.list, name)
		}
	}
	if len(*n.list) == 0 {
		return errors.New("needs at least one name")
	}
	return nil
}

func parseFlags(args []string, stdout, stderr io.Writer) (Config, string, error) {
	cfg := DefaultConfig()
	fs := flag.NewFlagSet("vllmsim", flag.ContinueOnError)
	fs.SetOutput(stderr)
	listen := fs.String("listen", "127.0.0.1:8000", "`address` to serve at; port 0 picks one and prints it")
	fs.Var(names{&cfg.Model}, "model", "served `names`, comma-separated; responses carry the first")
	fs.Var(names{&cfg.Adapters}, "lora-modules", "adapter `names` served beside the model")
	fs.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "context window in `tokens`, prompt plus answer")
	fs.IntVar(&cfg.MaxNumSeqs, "max-num-seqs", cfg.MaxNumSeqs, "`requests` that run at once; more wait")
	fs.IntVar(&cfg.NumBlocks, "num-blocks", cfg.NumBlocks, "KV `blocks`, the null block included")
	fs.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "`tokens` per KV block")
	fs.IntVar(&cfg.MaxBatchedTokens, "max-num-batched-tokens", cfg.MaxBatchedTokens, "token budget of a step: longer prompts are computed in chunks")
	fs.IntVar(&cfg.MaxQueuedReqs, "max-num-queued-reqs", 0, "answer 503 when so many `requests` wait or run; 0 = never")
	fs.IntVar(&cfg.MaxQueuedTokens, "max-num-queued-tokens", 0, "answer 503 while so many prompt `tokens` wait for prefill; 0 = never")
	fs.StringVar(&cfg.Profile, "profile", cfg.Profile, "step times, one of: "+strings.Join(engine.ProfileNames(), " "))
	fs.Float64Var(&cfg.Speed, "speed", cfg.Speed, "run this many times faster than the profile")
	fs.BoolVar(&cfg.PrefixCaching, "prefix-caching", cfg.PrefixCaching, "reuse KV blocks of earlier prompts")
	fs.StringVar(&cfg.MetricsStyle, "metrics-style", cfg.MetricsStyle, "age of /metrics and of error texts, one of: "+strings.Join(MetricsStyles(), " "))
	fs.StringVar(&cfg.APIKey, "api-key", "", "bearer `key` that /v1 and /inference demand")
	fs.DurationVar(&cfg.ShutdownTimeout, "shutdown-timeout", 0, "`time` that SIGTERM leaves to running requests; 0 = they hang at once")
	fs.DurationVar(&cfg.KeepAlive, "keep-alive", cfg.KeepAlive, "idle `time` after which a kept connection is closed")
	fs.BoolVar(&cfg.Pooling, "pooling", cfg.Pooling, "serve embeddings, pooling, classify, score, rerank and audio")
	fs.BoolVar(&cfg.Multimodal, "multimodal", cfg.Multimodal, "accept images in chat messages")
	fs.BoolVar(&cfg.ToolParser, "enable-auto-tool-choice", cfg.ToolParser, "accept tool_choice auto")
	fs.BoolVar(&cfg.DevMode, "dev-mode", cfg.DevMode, "serve /sleep, /pause, /abort_requests, /reset_prefix_cache and more")
	fs.BoolVar(&cfg.ScaleOut, "enable-scale-out", cfg.ScaleOut, "serve the render routes and /inference/v1/generate")
	fs.BoolVar(&cfg.LoadTracking, "enable-server-load-tracking", false, "count requests in /load")
	fs.BoolVar(&cfg.RequestMetrics, "enable-per-request-metrics", false, "add a metrics object to responses")
	fs.Float64Var(&cfg.Merge, "merge", cfg.Merge, "`share` of tokens that share a frame with the next while 4 or more requests run")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "changes the generated text")
	fs.Usage = func() {
		_, _ = io.WriteString(stdout, usageHead)
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		fs.SetOutput(stderr)
		_, _ = io.WriteString(stdout, usageTail)
	}
	if err := fs.Parse(args); err != nil {
		return cfg, "", err
	}
	if fs.NArg() > 0 {
		err := fmt.Errorf("parsing arguments: unexpected %q", fs.Arg(0))
		_, _ = fmt.Fprintln(stderr, "vllmsim:", err)
		return cfg, "", err
	}
	return cfg, *listen, nil
}

const usageHead = `vllmsim is a simulated vLLM server: real HTTP, real metrics pages, no GPU and no model.
The text it generates is noise, but token counts, queueing, batching, prefix caching, preemption and
timing follow vLLM's scheduler and the chosen profile. Requests without max_tokens stop by themselves
after 32 to 512 tokens; with max_tokens they get exactly that many.

  vllmsim --listen 127.0.0.1:8001 --model demo --profile tiny-cpu &
  curl -N 127.0.0.1:8001/v1/chat/completions -H 'content-type: application/json' \
       -d '{"model":"demo","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hi"}]}'
  curl 127.0.0.1:8001/metrics

Flags:
`

const usageTail = `
Faults, per request by the header x-vllmsim-fault or for the server by POST /vllmsim/fault:

  curl -d '{"fault":"slowdown=10","for":"30s"}' 127.0.0.1:8001/vllmsim/fault
  curl -d '{"fault":"503;retry-after=2","count":3}' 127.0.0.1:8001/vllmsim/fault
  curl -X DELETE 127.0.0.1:8001/vllmsim/fault

  one request: reset cut early-end hang (each with ;after=FRAMES), slow=TIME, any status from 400 to 599
  the server:  slowdown=FACTOR slow-metrics=TIME freeze-metrics fail-metrics refuse zombie
  no way back: engine-dead terminate (as SIGTERM)

GET /vllmsim/stats counts what was executed (also by the SHA-256 of the body), aborted, in flight.
`
