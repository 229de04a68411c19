package simcmd

import (
	"fmt"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/sim"
)

// words is a flag that may be given several times.
type words []string

// String is of flag.Value.
func (w *words) String() string { return strings.Join(*w, " ") }

// Set is of flag.Value.
func (w *words) Set(text string) error {
	*w = append(*w, text)
	return nil
}

// readEndpoints reads --endpoint, and --down, which is short for its key down.
func (w *what) readEndpoints() error {
	for _, text := range w.endpoint {
		e, err := config.ParseSimEndpoint("--endpoint", text)
		if err != nil {
			return err
		}
		w.sets = append(w.sets, e)
	}
	if w.down == "" {
		return nil
	}
	for text := range strings.SplitSeq(w.down, ",") {
		number, span, _ := strings.Cut(text, ":")
		e, err := config.ParseSimEndpoint("--down", number+":down="+span)
		if err != nil {
			return fmt.Errorf("%w (--down takes 0:30s-90s, several separated by commas)", err)
		}
		w.sets = append(w.sets, e)
	}
	return nil
}

// known reports the first endpoint of sets that a fleet of n does not have.
func known(sets []config.SimEndpoint, n int) error {
	for _, e := range sets {
		if e.Last >= n {
			return fmt.Errorf("%s: there is no endpoint %d: --endpoints %d makes them 0 to %d", e.Where, e.Last, n, n-1)
		}
	}
	return nil
}

// fleet returns n endpoints, each with what was said of it: a later word on the same thing wins, outages add up.
func (w *what) fleet(n int, sets []config.SimEndpoint) []sim.Endpoint {
	tokens := make([]int, n)
	out := sim.Fleet(n, w.engine)
	for i := range tokens {
		tokens[i] = w.tokens
	}
	for k := range sets {
		for i := sets[k].First; i <= sets[k].Last; i++ {
			apply(&sets[k], &out[i], &tokens[i])
		}
	}
	for i := range out {
		e := &out[i].Engine
		e.Blocks = tokens[i]/e.BlockSize + 1
	}
	return out
}

func apply(s *config.SimEndpoint, e *sim.Endpoint, tokens *int) {
	set := func(dst *int, v int) {
		if v > 0 {
			*dst = v
		}
	}
	at := func(dst *time.Duration, v time.Duration) {
		if v > 0 {
			*dst = v
		}
	}
	if s.Speed > 0 {
		e.Slow = 1 / s.Speed
	}
	set(tokens, s.KVTokens)
	set(&e.Engine.BlockSize, s.BlockSize)
	set(&e.Engine.MaxNumSeqs, s.MaxNumSeqs)
	set(&e.Engine.MaxBatchedTokens, s.MaxBatchedTokens)
	set(&e.Ranks, s.Ranks)
	if s.PrefixCaching != nil {
		e.Engine.PrefixCaching = *s.PrefixCaching
	}
	at(&e.Join, s.Join)
	at(&e.Leave, s.Leave)
	e.Warm = e.Warm || s.Warm
	for _, o := range s.Down {
		e.Down = append(e.Down, sim.Outage(o))
	}
	for _, o := range s.Hang {
		e.Hang = append(e.Hang, sim.Outage(o))
	}
}

// bypassed is a workload beside which requests come to single endpoints past the gateway.
func bypassed(do sim.Workload, sets []config.SimEndpoint) sim.Workload {
	return func(s *sim.Sim) {
		do(s)
		for k := range sets {
			e := &sets[k]
			if e.Foreign == 0 {
				continue
			}
			draw := func(mean, usual int) int {
				if mean == 0 {
					mean = usual
				}
				return s.Uniform(max(1, mean/2), mean+mean/2)
			}
			for i := e.First; i <= e.Last; i++ {
				s.Poisson(e.Foreign, func() { s.Bypass(i, draw(e.ForeignPrompt, 1000), draw(e.ForeignOutput, 200)) })
			}
		}
	}
}

// mostBlocks is how many KV blocks an endpoint may have: its memory is taken before the first request, some 60 bytes each.
const mostBlocks = 1 << 22

// checkEngine fills in the engine of an ordinary endpoint.
func (w *what) checkEngine() error {
	p, ok := engine.ProfileByName(w.profile)
	if !ok {
		return noSuch("profile", w.profile, engine.ProfileNames())
	}
	for _, n := range []struct {
		name     string
		v, least int
	}{{"block-size", w.engine.BlockSize, 1}, {"max-num-seqs", w.engine.MaxNumSeqs, 1}, {"max-num-batched-tokens", w.engine.MaxBatchedTokens, 1},
		{"kv-tokens", w.tokens, w.engine.BlockSize}} {
		if n.v < n.least || n.v > 1<<30 {
			return fmt.Errorf("--%s %d is outside %d to %d", n.name, n.v, n.least, 1<<30)
		}
	}
	if n := w.tokens / w.engine.BlockSize; n > mostBlocks {
		return fmt.Errorf("--kv-tokens %d are %d blocks of %d, more than %d", w.tokens, n, w.engine.BlockSize, mostBlocks)
	}
	w.engine.Profile, w.engine.Blocks = p, w.tokens/w.engine.BlockSize+1
	return w.engine.Validate()
}
