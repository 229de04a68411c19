package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/engine"
)

// small is an engine of 20 usable blocks of 4 tokens with room for everything else.
func small(change func(*engine.Config)) *engine.Engine {
	c := engine.Config{Blocks: 21, BlockSize: 4, MaxNumSeqs: 8, MaxBatchedTokens: 64, MaxModelLen: 80, PrefixCaching: true}
	if change != nil {
		change(&c)
	}
	return engine.New(c)
}

func seq(id, n, out int) *engine.Seq {
	return &engine.Seq{ID: fmt.Sprint(id), Tokens: prompt(id, n), MaxTokens: out}
}

func add(t *testing.T, e *engine.Engine, seqs ...*engine.Seq) {
	t.Helper()
	for _, s := range seqs {
		if err := e.Add(s); err != nil {
			t.Fatal(err)
		}
	}
}

// pass runs one step and tells who emitted, as "id" or "id:reason".
func pass(t *testing.T, e *engine.Engine) (engine.Step, []string) {
	t.Helper()
	st, ok := e.Schedule()
	if !ok {
		t.Fatal("nothing to do")
	}
	var out []string
	for _, o := range e.Finish(st) {
		s := o.Seq.ID
		if o.Finished != engine.None {
			s += ":" + o.Finished.String()
		}
		out = append(out, s)
	}
	return st, out
}

func passes(t *testing.T, e *engine.Engine, n int) (out [][]string) {
	t.Helper()
	for range n {
		_, o := pass(t, e)
		out = append(out, o)
	}
	return out
}

func wantPasses(t *testing.T, e *engine.Engine, want ...[]string) {
	t.Helper()
	if diff := cmp.Diff(want, passes(t, e, len(want))); diff != "" {
		t.Errorf("tokens per step (-want +got):\n%s", diff)
	}
}

func TestAddRefuses(t *testing.T) {
	limited := func(c *engine.Config) { c.MaxQueuedReqs, c.MaxQueuedTokens = 3, 30 }
	for _, c := range []struct {
		name   string
		before []*engine.Seq
		add    []*engine.Seq
		want   error
	}{
		{"an empty prompt", nil, []*engine.Seq{{MaxTokens: 1}}, engine.ErrEmpty},
		{"a prompt that fills the window", nil, []*engine.Seq{seq(1, 80, 1)}, engine.ErrTooLong},
		{"a prompt one short of the window is taken", nil, []*engine.Seq{seq(1, 79, 1)}, nil},
		{"a prompt above the backlog limit when there is none", nil, []*engine.Seq{seq(1, 70, 1)}, nil},
		{"anything once the backlog limit is reached", []*engine.Seq{seq(1, 30, 1)}, []*engine.Seq{seq(2, 1, 1)}, engine.ErrBacklog},
		{"one below the backlog limit is taken", []*engine.Seq{seq(1, 29, 1)}, []*engine.Seq{seq(2, 40, 1)}, nil},
		{"the fourth of three", []*engine.Seq{seq(1, 1, 1), seq(2, 1, 1), seq(3, 1, 1)}, []*engine.Seq{seq(4, 1, 1)}, engine.ErrQueueFull},
		{"n answers that reach the limit are taken", []*engine.Seq{seq(1, 1, 1)}, []*engine.Seq{seq(2, 1, 1), seq(2, 1, 1)}, nil},
		{"n answers beyond the limit, as a whole", []*engine.Seq{seq(1, 1, 1)}, []*engine.Seq{seq(2, 1, 1), seq(2, 1, 1), seq(2, 1, 1)}, engine.ErrQueueFull},
		{"the queue limit is looked at first", []*engine.Seq{seq(1, 20, 1), seq(2, 20, 1)}, []*engine.Seq{seq(3, 1, 1), seq(4, 1, 1)}, engine.ErrQueueFull},
	} {
		e := small(limited)
		add(t, e, c.before...)
		if err := e.Add(c.add...); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	e := small(limited)
	s := seq(1, 5, 2)
	add(t, e, s)
	if err := e.Add(s); !errors.Is(err, engine.ErrActive) {
		t.Errorf("adding twice: %v", err)
	}
	if err := e.Add(seq(2, 5, 2), seq(3, 5, 2), seq(4, 5, 2)); err == nil {
		t.Fatal("over the limit")
	}
	if got := e.Stats().RefusedQueue; got != 1 {
		t.Errorf("refusals counted %d, want 1", got)
	}
	wantPasses(t, e, []string{"1"}, []string{"1:length"})
	if s.MaxTokens = 1; e.Add(s) != nil {
		t.Error("a sequence that ended cannot be added again")
	}
}

func TestAnswerEnds(t *testing.T) {
	for _, c := range []struct {
		name        string
		prompt, max int
		stop        int
		want        int
		reason      engine.Reason
	}{
		{"at max tokens", 10, 3, 0, 3, engine.Length},
		{"at the window when max tokens is larger", 75, 80, 0, 5, engine.Length},
		{"at the window when max tokens is not given", 75, 0, 0, 5, engine.Length},
		{"by itself", 10, 9, 4, 4, engine.Stop},
		{"by itself on its last token", 10, 4, 4, 4, engine.Stop},
		{"at max tokens before it would end by itself", 10, 4, 5, 4, engine.Length},
	} {
		e := small(nil)
		s := seq(1, c.prompt, c.max)
		s.StopAfter = c.stop
		add(t, e, s)
		n, reason := 0, engine.None
		for st, ok := e.Schedule(); ok; st, ok = e.Schedule() {
			for _, o := range e.Finish(st) {
				n++
				reason = o.Finished
			}
		}
		if n != c.want || reason != c.reason {
			t.Errorf("%s: %d tokens, %v; want %d, %v", c.name, n, reason, c.want, c.reason)
		}
		if s := e.Stats(); s.DoneStop+s.DoneLength != 1 || s.UsedBlocks != 0 || s.Running != 0 {
			t.Errorf("%s: left behind %+v", c.name, s)
		}
	}
}

// Decodes come first; what is left of the budget goes to prefills in order; the last chunk emits.
func TestBudgetAndChunks(t *testing.T) {
	e := small(func(c *engine.Config) { c.MaxBatchedTokens = 10 })
	add(t, e, seq(1, 4, 9))
	wantPasses(t, e, []string{"1"})
	add(t, e, seq(2, 20, 9), seq(3, 3, 9))
	for i, want := range []struct {
		prefill, decodes int
		context          int64
	}{{9, 1, 5}, {9, 1, 6}, {5, 1, 7}, {0, 3, 8 + 21 + 4}} {
		st, out := pass(t, e)
		if st.Prefill != want.prefill || st.Decodes != want.decodes || st.Context != want.context {
			t.Errorf("step %d: prefill %d, decodes %d, context %d; want %+v (%v)", i, st.Prefill, st.Decodes, st.Context, want, out)
		}
	}
}

func TestLongPrefillThreshold(t *testing.T) {
	first := func(seqs ...*engine.Seq) int {
		e := small(func(c *engine.Config) { c.LongPrefillThreshold = 6 })
		add(t, e, seqs...)
		st, _ := pass(t, e)
		return st.Prefill
	}
	if got := first(seq(1, 20, 1)); got != 20 {
		t.Errorf("alone: %d tokens, want all 20", got)
	}
	if got := first(seq(1, 20, 1), seq(2, 20, 1)); got != 12 {
		t.Errorf("two: %d tokens, want 6 each", got)
	}
}

func TestAlignedChunks(t *testing.T) {
	e := small(func(c *engine.Config) { c.AlignChunks, c.MaxBatchedTokens = true, 10 })
	add(t, e, seq(1, 22, 1))
	var got []int
	for range 4 {
		st, _ := pass(t, e)
		got = append(got, st.Prefill)
	}
	if diff := cmp.Diff([]int{8, 8, 4, 2}, got); diff != "" { // ends at 8, 16, 20 (last full block), 22
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
}

func TestAbortDuringAStep(t *testing.T) {
	e := small(nil)
	a, b := seq(1, 4, 9), seq(2, 4, 9)
	add(t, e, a, b)
	st, _ := e.Schedule()
	if !e.Abort(a) || e.Abort(a) {
		t.Error("the first abort should find it, the second not")
	}
	out := e.Finish(st)
	if len(out) != 1 || out[0].Seq != b {
		t.Errorf("outputs %+v, want only the other", out)
	}
	if s := e.Stats(); s.Running != 1 || s.UsedBlocks != 1 || s.Prompt != 4 || s.Queries != 8 {
		t.Errorf("after the abort: %+v", s)
	}
	e.Abort(b)
	if s := e.Stats(); s.Running != 1 {
		t.Errorf("gauges moved without a step")
	}
	if st, _ := pass(t, e); !st.Empty || st.Duration != 0 {
		t.Errorf("want an empty step that publishes, got %+v", st)
	}
	if _, ok := e.Schedule(); ok || e.Stats().Running != 0 || !e.Idle() {
		t.Errorf("an idle engine steps")
	}
}

func TestFinishWithoutItsStep(t *testing.T) {
	e := small(nil)
	add(t, e, seq(1, 4, 9))
	st, _ := e.Schedule()
	if _, ok := e.Schedule(); ok {
		t.Error("two steps in flight")
	}
	if out := e.Finish(engine.Step{ID: st.ID + 1}); out != nil {
		t.Error("a foreign step was finished")
	}
	if out := e.Finish(st); len(out) != 1 {
		t.Error("the step in flight was not finished")
	}
	if out := e.Finish(st); out != nil {
		t.Error("the step was finished twice")
	}
}

// With asynchronous scheduling a sequence that comes during a step misses the next one, unless nothing else runs.
func TestAsyncScheduling(t *testing.T) {
	for _, c := range []struct {
		async bool
		want  int
	}{{false, 1}, {true, 2}} {
		e := small(func(c2 *engine.Config) { c2.AsyncScheduling = c.async })
		add(t, e, seq(1, 4, 9))
		st, _ := e.Schedule()
		add(t, e, seq(2, 4, 9))
		e.Finish(st)
		n := 0
		for e.Stats().Running < 2 {
			pass(t, e)
			n++
		}
		if n != c.want {
			t.Errorf("async %v: in the batch after %d steps, want %d", c.async, n, c.want)
		}
	}
}

// Precomputed hashes decide exactly what the tokens they stand for decide.
func TestHashesEqualTokens(t *testing.T) {
	const bs = 4
	run := func(byHash bool) engine.Stats {
		e := small(nil)
		for i := range 40 {
			shared, n := i%3, 5+i*7%50
			s := &engine.Seq{MaxTokens: 1 + i%9}
			for j := range n {
				s.Tokens = append(s.Tokens, uint32(shared*1000+j))
			}
			s.Answer = make([]uint32, 10)
			for j := range s.Answer {
				s.Answer[j] = uint32(shared*1000 + n + j)
			}
			if byHash { // block i of family f is (f, i): prompt and answer count on
				s.PromptTokens, s.Tokens, s.Answer = n, nil, nil
				for j := range (n + 10) / bs {
					s.Hashes = append(s.Hashes, uint64(shared+1)<<32|uint64(j))
				}
			}
			if err := e.Add(s); err != nil {
				t.Fatal(err)
			}
			pass(t, e)
		}
		for st, ok := e.Schedule(); ok; st, ok = e.Schedule() {
			e.Finish(st)
		}
		return e.Stats()
	}
	tokens, hashes := run(false), run(true)
	if diff := cmp.Diff(tokens, hashes); diff != "" {
		t.Errorf("-tokens +hashes:\n%s", diff)
	}
	if tokens.Hits == 0 || tokens.Preempted == 0 {
		t.Errorf("nothing was at stake: %+v", tokens)
	}
}

// Hashes that go on into the answer let the next turn hit it; without them the answer is nobody else's.
func TestHashesCoverTheNextTurn(t *testing.T) {
	for _, c := range []struct {
		covers int
		want   uint64
	}{{5, 20}, {3, 12}} { // 13 prompt + 9 answer tokens: 22 - 1 computed = 5 full blocks
		e := small(nil)
		chain := []uint64{1, 2, 3, 4, 5, 6, 7}
		add(t, e, &engine.Seq{Hashes: chain[:c.covers], PromptTokens: 13, MaxTokens: 9})
		for st, ok := e.Schedule(); ok; st, ok = e.Schedule() {
			e.Finish(st)
		}
		add(t, e, &engine.Seq{Hashes: chain, PromptTokens: 28, MaxTokens: 1})
		pass(t, e)
		if got := e.Stats().Hits; got != c.want {
			t.Errorf("hashes of %d blocks: second turn hits %d tokens, want %d", c.covers, got, c.want)
		}
	}
}

func TestSameHashesDifferentSalt(t *testing.T) {
	e := small(nil)
	for _, salt := range []uint64{1, 2, 1} {
		add(t, e, &engine.Seq{Hashes: []uint64{1, 2}, PromptTokens: 9, MaxTokens: 1, Salt: salt})
		pass(t, e)
	}
	if got := e.Stats().Hits; got != 8 {
		t.Errorf("hits %d, want 8: only the third shares with the first", got)
	}
}

// The answer to equal tokens is equal: the next turn of a deterministic client hits.
func TestSamplingIsAFunctionOfTheTokens(t *testing.T) {
	c := cacheRig{t, small(nil)}
	_, a := c.ask(prompt(1, 9), 5, 0)
	_, b := c.ask(prompt(1, 9), 5, 0)
	_, d := c.ask(prompt(2, 9), 5, 0)
	if !slices.Equal(a, b) || slices.Equal(a, d) || len(a) != 5 {
		t.Errorf("answers %v, %v to equal prompts, %v to another", a, b, d)
	}
}

func TestNoCacheSkipsTheLookUpAndStores(t *testing.T) {
	e := small(nil)
	s := seq(1, 9, 1)
	s.NoCache = true
	add(t, e, s)
	pass(t, e)
	again := seq(1, 9, 1)
	again.NoCache = true
	add(t, e, again)
	pass(t, e)
	if g := e.Stats(); g.Queries != 0 || g.Hits != 0 || g.CacheBlocks == 0 {
		t.Errorf("queries %d hits %d cached %d", g.Queries, g.Hits, g.CacheBlocks)
	}
	add(t, e, seq(1, 9, 1))
	pass(t, e)
	if g := e.Stats(); g.Hits != 8 {
		t.Errorf("hits %d of what was stored, want 8", g.Hits)
	}
}

func TestCachingOff(t *testing.T) {
	e := small(func(c *engine.Config) { c.PrefixCaching = false })
	for range 2 {
		add(t, e, seq(1, 20, 1))
		pass(t, e)
	}
	if g := e.Stats(); g.Queries != 0 || g.Hits != 0 || g.CacheBlocks != 0 || g.PromptLocal != 40 {
		t.Errorf("%+v", g)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  engine.Config
		want string
	}{
		{engine.Config{}, ""},
		{engine.Config{Blocks: 72, BlockSize: 32, MaxModelLen: 71 * 32}, ""},
		{engine.Config{Blocks: 72, BlockSize: 32, MaxModelLen: 71*32 + 1}, "checking engine max model len: 2273 does not fit into 71 usable blocks of 32 tokens"},
		{engine.Config{Blocks: 1}, "checking engine blocks: 1 is below 2 (one block is the null block)"},
		{engine.Config{BlockSize: -1}, "checking engine block size: -1 is below 1"},
		{engine.Config{MaxNumSeqs: -1}, "checking engine max num seqs: -1 is below 1"},
		{engine.Config{MaxBatchedTokens: -1}, "checking engine max batched tokens: -1 is below 1"},
		{engine.Config{AlignChunks: true, BlockSize: 832, MaxBatchedTokens: 512}, "checking engine max batched tokens: 512 is below the block size 832 that chunks align to"},
		{engine.Config{Watermark: 1}, "checking engine watermark: 1 is outside [0,1)"},
		{engine.Config{MaxQueuedReqs: -1}, "checking engine limits: a negative value (0 = no limit)"},
	} {
		got := ""
		if err := c.cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v:\n got %q\nwant %q", c.cfg, got, c.want)
		}
	}
}

func TestProfiles(t *testing.T) {
	for _, name := range engine.ProfileNames() {
		if p, ok := engine.ProfileByName(name); !ok || p.A < 0 || p.Duration(64, 64000, 2048, 2048*1024) < p.Duration(64, 64000, 0, 0) {
			t.Errorf("profile %s: %+v", name, p)
		}
	}
	if _, ok := engine.ProfileByName("nope"); ok {
		t.Error("an unknown profile was found")
	}
	// The fit of Qwen3-32B on two H100: 64 decodes at 1,000 tokens of context beside nothing, and a 2,048-token chunk alone.
	p, _ := engine.ProfileByName("qwen3-32b-h100-tp2")
	if got, want := p.Duration(64, 64000, 0, 0), 21190*time.Microsecond; (got - want).Abs() > 20*time.Microsecond {
		t.Errorf("decode step %v, want %v", got, want)
	}
	if got, want := p.Duration(0, 0, 2048, 2048*1024), 119676*time.Microsecond; (got - want).Abs() > 20*time.Microsecond {
		t.Errorf("prefill step %v, want %v", got, want)
	}
}
