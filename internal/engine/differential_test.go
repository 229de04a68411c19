package engine_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/engine"
)

// A 1500-token prompt under a budget of 256 beside one decode: queries jump at the admission, prompt tokens come with the first
// token, the decode keeps its token per step. Recorded: scenarios/chunked-prefill-1500in.
func TestRecordedChunkedPrefill(t *testing.T) {
	r := load(t, "chunked-prefill-1500in.json")
	got := replay(t, recorded(), r.Scrapes[0], []arrival{{prompt: 40, out: 150}, {prompt: 1500, out: 4, tokens: 113}})
	compare(t, r.Scrapes, got.states)
	if steps := got.first[1] - 113 + 1; steps != 6 {
		t.Errorf("the long prompt took %d steps, recorded 6", steps)
	}
}

// Small prompts wait behind one that does not fit although slots and blocks are free; the one admitted last gives way at 271
// of its 300 tokens. Recorded: scenarios/head-of-line-blocking.
func TestRecordedHeadOfLine(t *testing.T) {
	r := load(t, "head-of-line-blocking.json")
	got := replay(t, recorded(), r.Scrapes[0], []arrival{
		{prompt: 850, out: 300}, {prompt: 850, out: 300, steps: 3}, // during the third chunk of the first
		{prompt: 640, out: 8, tokens: 20},
		{prompt: 32, out: 8, tokens: 46}, {prompt: 32, out: 8, tokens: 46}, {prompt: 10, out: 8, tokens: 46},
	})
	compare(t, r.Scrapes, got.states)
	if diff := cmp.Diff([][]int{nil, {271}, nil, nil, nil, nil}, got.preempted); diff != "" {
		t.Errorf("preempted at answer length (-recorded +model):\n%s", diff)
	}
	if f := got.first[2:]; slices.Min(f) != slices.Max(f) {
		t.Errorf("the head and those behind it got their first tokens in steps %v, recorded in one", f)
	}
}

// Five answers that outgrow the blocks: victims p4, p3, p4 again, each the one admitted last, where the clients saw their gaps;
// the counter lags until a victim emits again; re-admissions are not counted as queries. Recorded:
// scenarios/preemption-5x160in-500out.
func TestRecordedPreemption(t *testing.T) {
	r := load(t, "preemption-5x160in-500out.json")
	// p1 came 65 tokens after p0: both clients saw the same stall, one after chunk 189, the other after chunk 124.
	if d := r.Requests[0].Gap[1] - r.Requests[1].Gap[1]; d != 65 {
		t.Fatalf("p1 is %g tokens behind p0 in the recording, want 65", d)
	}
	got := replay(t, recorded(), r.Scrapes[0], []arrival{
		{prompt: 160, out: 500}, {prompt: 160, out: 500, tokens: 65}, {prompt: 160, out: 500, tokens: 76},
		{prompt: 160, out: 500, tokens: 78}, {prompt: 160, out: 500, tokens: 85},
	})
	compare(t, r.Scrapes, got.states)
	if diff := cmp.Diff([][]int{nil, nil, nil, {378}, {257, 275}}, got.preempted); diff != "" {
		t.Errorf("preempted at answer length (-want +model):\n%s", diff)
	}
	if at := r.Requests[4].Gap[1]; at != 257 {
		t.Errorf("p4's longest gap is after chunk %g in the recording, want where the model preempts it first", at)
	}
	// A stall of the whole server near the end shows p2 and p3 after 496 and 445 tokens, p0 and p1 done.
	moment := []int{500, 500, int(r.Requests[2].Gap[1]), int(r.Requests[3].Gap[1])}
	if !slices.ContainsFunc(got.lengths, func(l []int) bool { return slices.Equal(l[:4], moment) }) {
		t.Errorf("the answers never have the recorded lengths %v at once", moment)
	}
}

// Twenty requests on eight slots in three waves. Recorded: scenarios/20-concurrent-40in-150out (0.32.0).
func TestRecordedConcurrent(t *testing.T) {
	r := load(t, "20-concurrent-40in-150out.json")
	steps := []int{0, 7, 7, 12, 14, 14, 15, 16}
	got := replay(t, recorded(), r.Scrapes[0], waves(steps, 20, 150, 64, 6, 120))
	compare(t, r.Scrapes, got.states)
	if !slices.IsSorted(got.first) {
		t.Errorf("first tokens in steps %v: not in order of arrival", got.first)
	}
	// The client saw the same three waves: within one, the order on the wire is not decided (outputs are merged).
	for _, w := range [][2]int{{7, 8}, {15, 16}} {
		for _, early := range r.Requests[:w[1]] {
			for _, late := range r.Requests[w[1]:] {
				if early.First > late.First {
					t.Errorf("recording: %s before %s", late.Name, early.Name)
				}
			}
		}
	}
}

// The same on 0.10.0, which admits on the first chunk and whose gauge counts the null block. Recorded: v0.10.0 scenarios.
func TestRecordedConcurrentOld(t *testing.T) {
	r := load(t, "v0.10.0-20-concurrent-40in-100out.json")
	cfg := recorded()
	cfg.FirstChunkOnly = true
	a := waves([]int{0, 21, 25, 27, 32, 36, 36, 40}, 20, 100, 90, 1, 200)
	for i := range a[9:] { // they came one by one; the scrapes bound when
		a[9+i].tokens = []int{200, 200, 200, 300, 300, 300, 400, 400, 400, 400, 500}[i]
	}
	got := replay(t, cfg, r.Scrapes[0], a)
	for i, s := range got.states {
		s.Compute, s.Hit, s.Capacity = 0, 0, 0 // series that 0.10.0 lacks
		s.KV = round4((math.Round(s.KV*71) + 1) / 72)
		got.states[i] = s
	}
	compare(t, r.Scrapes, got.states)
}

// waves: the first requests come at the given steps, then n queue once `tokens` tokens are out and the rest after `later`.
func waves(steps []int, total, out, tokens, n, later int) []arrival {
	var a []arrival
	for _, s := range steps {
		a = append(a, arrival{prompt: 40, out: out, steps: s})
	}
	for len(a) < total {
		w := arrival{prompt: 40, out: out, tokens: tokens}
		if len(a) >= len(steps)+n {
			w.tokens = later
		}
		a = append(a, w)
	}
	return a
}

type cacheFact struct {
	What   string
	Prompt int `json:"prompt_tokens"`
	First  cachedTokens
	Second cachedTokens

	TurnPrompt int  `json:"prompt"`
	TurnOutput int  `json:"output"`
	Turn2      *int `json:"turn2_cached"`

	NoSalt     *cachedTokens `json:"no_salt"`
	SaltFirst  cachedTokens  `json:"salt_first"`
	SaltSecond cachedTokens  `json:"salt_second"`

	Usage struct {
		Details cachedTokens `json:"prompt_tokens_details"`
	}
	Queries float64 `json:"dq"`
	Hits    float64 `json:"dh"`
	Cached  *cachedTokens
}

type cachedTokens struct {
	N int `json:"cached_tokens"`
}

// cacheRig asks one engine for answers and tells how many prompt tokens were cached.
type cacheRig struct {
	t *testing.T
	e *engine.Engine
}

func (c cacheRig) ask(tokens []uint32, out int, salt uint64) (cached int, answer []uint32) {
	c.t.Helper()
	if err := c.e.Add(&engine.Seq{Tokens: tokens, MaxTokens: out, Salt: salt}); err != nil {
		c.t.Fatal(err)
	}
	for {
		st, ok := c.e.Schedule()
		if !ok {
			return cached, answer
		}
		for _, o := range c.e.Finish(st) {
			cached, answer = o.Cached, append(answer, o.Token)
		}
	}
}

// Cached tokens by prompt length, of a second turn, with a salt, for n=4 of a cold prompt, and what an eviction leaves.
// Recorded: scenarios/prefix-cache-facts.
func TestRecordedPrefixCache(t *testing.T) {
	var facts []cacheFact
	readJSON(t, "prefix-cache-facts.json", &facts)
	c := cacheRig{t, engine.New(recorded())}
	checked := 0
	want := func(f cacheFact, got, want int) {
		t.Helper()
		checked++
		if got != want {
			t.Errorf("%s (%d%+d tokens): cached %d, recorded %d", f.What, f.Prompt+f.TurnPrompt, f.TurnOutput, got, want)
		}
	}
	for i, f := range facts {
		id := 100 + i
		switch {
		case f.What == "same prompt twice":
			p := prompt(id, f.Prompt)
			first, _ := c.ask(p, 8, 0)
			second, _ := c.ask(p, 8, 0)
			want(f, first, f.First.N)
			want(f, second, f.Second.N)
		case f.Turn2 != nil:
			p := prompt(id, f.TurnPrompt)
			_, answer := c.ask(p, f.TurnOutput, 0)
			got, _ := c.ask(slices.Concat(p, answer, prompt(id+500, 20)), 8, 0)
			want(f, got, *f.Turn2)
		case f.NoSalt != nil:
			p := prompt(id, 40)
			plain, _ := c.ask(p, 8, 0)
			salted, _ := c.ask(p, 8, 7)
			again, _ := c.ask(p, 8, 7)
			want(f, plain, f.NoSalt.N)
			want(f, salted, f.SaltFirst.N)
			want(f, again, f.SaltSecond.N)
		case f.Usage.Details.N > 0:
			want4(t, c, prompt(200, 100), f)
			checked++
		case f.Queries == 100:
			before := c.e.Stats()
			c.ask(prompt(200, 100), 4, 0)
			after := c.e.Stats()
			want(f, int(after.Queries-before.Queries), int(f.Queries))
			want(f, int(after.Hits-before.Hits), int(f.Hits))
		case f.Cached != nil && f.Cached.N == 288:
			c.ask(prompt(301, 320), 4, 0)
			c.ask(prompt(302, 1000), 4, 0)
			got, _ := c.ask(prompt(301, 320), 4, 0)
			want(f, got, f.Cached.N)
		case f.Cached != nil:
			c.ask(prompt(303, 1300), 4, 0)
			got, _ := c.ask(prompt(302, 1000), 4, 0)
			want(f, got, f.Cached.N)
		default: // all finished: blocks stay cached, none is in use
			if s := c.e.Stats(); s.KVUsage != 0 || s.CacheBlocks == 0 {
				t.Errorf("%s: usage %g with %d cached blocks", f.What, s.KVUsage, s.CacheBlocks)
			}
			checked++
		}
	}
	if checked < 30 {
		t.Errorf("only %d facts were compared", checked)
	}
	told(t, "cached tokens, queries, hits", checked, checked)
}

// want4 asks for four answers to one cold prompt at once: three of them hit what the first registered in the same pass.
func want4(t *testing.T, c cacheRig, p []uint32, f cacheFact) {
	t.Helper()
	before := c.e.Stats()
	var seqs []*engine.Seq
	for i := range 4 {
		seqs = append(seqs, &engine.Seq{Tokens: p, MaxTokens: 4, Answer: []uint32{uint32(i)}})
	}
	if err := c.e.Add(seqs...); err != nil {
		t.Fatal(err)
	}
	most := 0
	for st, ok := c.e.Schedule(); ok; st, ok = c.e.Schedule() {
		for _, o := range c.e.Finish(st) {
			most = max(most, o.Cached)
		}
	}
	after := c.e.Stats()
	got := []float64{float64(after.Queries - before.Queries), float64(after.Hits - before.Hits), float64(most)}
	if diff := cmp.Diff([]float64{f.Queries, f.Hits, float64(f.Usage.Details.N)}, got); diff != "" {
		t.Errorf("%s (-recorded +model):\n%s", f.What, diff)
	}
}

type abortFact struct {
	name             string
	running, waiting [][]float64 // scrapes after the close: t, running, generated, usage; and t, running, waiting
	prompt           float64     // prompt tokens booked; -1 where the recording does not say
	generated        float64
}

// UnmarshalJSON reads by hand: the recording's keys contain commas.
func (f *abortFact) UnmarshalJSON(data []byte) error {
	var m map[string]json.RawMessage
	f.prompt = -1
	err := json.Unmarshal(data, &m)
	for key, v := range map[string]any{
		"name": &f.name, "rows_after_close[t,running,generated,kv]": &f.running, "rows_after_close[t,running,waiting]": &f.waiting,
		"prompt_tokens_delta": &f.prompt, "generation_tokens_delta": &f.generated,
	} {
		if raw, ok := m[key]; ok {
			err = errors.Join(err, json.Unmarshal(raw, v))
		}
	}
	return err
}

// A client's abort: blocks and slot are free at the next step, nothing is booked as done, prompt tokens only if the first
// token was out. Recorded: scenarios/client-aborts.
func TestRecordedClientAborts(t *testing.T) {
	var facts []abortFact
	readJSON(t, "client-aborts.json", &facts)
	checked := 0
	for _, f := range facts {
		switch {
		case f.prompt >= 0:
			checked++
			e := engine.New(recorded())
			s := &engine.Seq{Tokens: prompt(1, 40), MaxTokens: 400}
			if err := e.Add(s); err != nil {
				t.Fatal(err)
			}
			for range int(f.generated) {
				st, _ := e.Schedule()
				e.Finish(st)
			}
			if row := f.running[0]; row[1] == 1 && math.Abs(e.Stats().KVUsage-row[3]) > 1e-9 {
				t.Errorf("%s: usage %g before, recorded %g", f.name, e.Stats().KVUsage, row[3])
			}
			e.Abort(s)
			st, ok := e.Schedule()
			if !ok || !st.Empty || len(e.Finish(st)) != 0 {
				t.Errorf("%s: the abort should be published by an empty step, got %+v", f.name, st)
			}
			last := f.running[len(f.running)-1]
			g := e.Stats()
			got := []float64{float64(g.Running), float64(g.Generated), g.KVUsage, float64(g.Prompt), float64(g.DoneStop + g.DoneLength + g.DoneAbort)}
			if diff := cmp.Diff([]float64{last[1], f.generated, last[3], f.prompt, 0}, got); diff != "" {
				t.Errorf("%s: running, generated, usage, prompt tokens, done (-recorded +model):\n%s", f.name, diff)
			}
			if g.Queries != 40 && f.generated > 0 {
				t.Errorf("%s: queries %d, want 40", f.name, g.Queries)
			}
		case f.waiting != nil:
			checked++
			e := engine.New(recorded())
			var last *engine.Seq
			for i := range 9 {
				last = &engine.Seq{Tokens: prompt(i+1, 20), MaxTokens: 400}
				if err := e.Add(last); err != nil {
					t.Fatal(err)
				}
			}
			for abort := range f.waiting {
				if abort == 1 {
					e.Abort(last)
				}
				st, _ := e.Schedule()
				e.Finish(st)
				got := []float64{float64(e.Stats().Running), float64(e.Stats().Waiting)}
				if diff := cmp.Diff(f.waiting[abort][1:], got); diff != "" {
					t.Errorf("%s: running, waiting (-recorded +model):\n%s", f.name, diff)
				}
			}
		}
	}
	if checked != 4 {
		t.Errorf("%d aborts compared, want 4", checked)
	}
	told(t, "gauges and counters after the close", checked, checked)
}
