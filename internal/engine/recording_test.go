package engine_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/engine"
)

// recording is one scenario of a real vLLM server: what each client saw, and every scrape in which something had changed.
type recording struct {
	Requests []struct {
		Name  string
		Gap   [2]float64 `json:"max_gap"` // longest silence: seconds, after which chunk
		First float64    `json:"first_token"`
		Send  float64    `json:"send"`
		End   float64    `json:"end"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Output int `json:"completion_tokens"`
		}
	}
	Scrapes []scrape `json:"metrics_timeline"`
}

type scrape struct {
	T           float64
	Run, Wait   float64
	KV          float64
	Queries     float64 `json:"q"`
	Hits        float64 `json:"h"`
	Preemptions float64 `json:"pre"`
	Prompt      float64 `json:"pt"`
	Compute     float64 `json:"pt_compute"`
	Hit         float64 `json:"pt_hit"`
	Generated   float64 `json:"gen"`
	Length      float64 `json:"ok_len"`
	Capacity    float64 `json:"wait_cap"`
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("decoding %s: %v", name, err)
	}
}

func load(t *testing.T, name string) recording {
	t.Helper()
	var r recording
	readJSON(t, name, &r)
	if len(r.Requests) == 0 || len(r.Scrapes) == 0 {
		t.Fatalf("%s: empty recording", name)
	}
	return r
}

// recorded is the configuration of the recorded servers: 72 blocks of 32 tokens, 8 slots, 256 tokens a step.
func recorded() engine.Config {
	p, _ := engine.ProfileByName("tiny-cpu")
	return engine.Config{Blocks: 72, BlockSize: 32, MaxNumSeqs: 8, MaxBatchedTokens: 256, MaxModelLen: 2048, PrefixCaching: true, Profile: p}
}

// prompt is a prompt of n tokens that shares no block with another id.
func prompt(id, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(id*100000 + i)
	}
	return p
}

// state is what the recorded scrapes show, counted from the start of the scenario.
func state(s engine.Stats, base scrape) scrape {
	return scrape{
		Run: float64(s.Running), Wait: float64(s.Waiting), Capacity: float64(s.Capacity), KV: round4(s.KVUsage),
		Queries: base.Queries + float64(s.Queries), Hits: base.Hits + float64(s.Hits), Preemptions: base.Preemptions + float64(s.Preemptions),
		Prompt: base.Prompt + float64(s.Prompt), Compute: base.Compute + float64(s.PromptLocal), Hit: base.Hit + float64(s.PromptHit),
		Generated: base.Generated + float64(s.Generated), Length: base.Length + float64(s.DoneLength),
	}
}

func round4(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// arrival is one request of a scenario, and when it reached the scheduler: before the first step after which at least `tokens`
// tokens had been generated (counted from the start of the scenario) and `steps` steps had run. The clients' clocks do not
// decide that to the step, but the scrapes do: they hold every later count.
type arrival struct {
	prompt, out   int
	tokens, steps int
}

// run is what a replay shows: the counts after every step, and per request the answer lengths at which it was preempted.
type run struct {
	states    []scrape
	preempted [][]int
	first     []int   // step of the first token
	lengths   [][]int // after every step: the answers' lengths
}

// replay plays the arrivals through the model.
func replay(t *testing.T, cfg engine.Config, base scrape, arrivals []arrival) run {
	t.Helper()
	e := engine.New(cfg)
	r := run{states: []scrape{state(e.Stats(), base)}, preempted: make([][]int, len(arrivals)), first: make([]int, len(arrivals))}
	seqs := make([]*engine.Seq, len(arrivals))
	for i, a := range arrivals {
		seqs[i] = &engine.Seq{Data: i, Tokens: prompt(i+1, a.prompt), MaxTokens: a.out}
	}
	next := 0
	running := map[*engine.Seq]bool{}
	for step := 0; step < 20000; step++ {
		for next < len(seqs) && int(e.Stats().Generated) >= arrivals[next].tokens && step >= arrivals[next].steps {
			if err := e.Add(seqs[next]); err != nil {
				t.Fatal(err)
			}
			next++
		}
		st, ok := e.Schedule()
		if !ok {
			if next < len(seqs) {
				t.Fatalf("idle at %d generated tokens with %d arrivals to come", e.Stats().Generated, len(seqs)-next)
			}
			return r
		}
		emitted := map[*engine.Seq]bool{}
		for _, o := range e.Finish(st) {
			emitted[o.Seq] = o.Finished == engine.None
			if i := o.Seq.Data.(int); o.First {
				r.first[i] = step
			}
		}
		for s := range running {
			if _, ok := emitted[s]; !ok { // it had a token in the step before and none now: it was preempted
				i := s.Data.(int)
				r.preempted[i] = append(r.preempted[i], s.Outputs())
			}
		}
		running = emitted
		for s, goesOn := range running {
			if !goesOn {
				delete(running, s)
			}
		}
		r.states = append(r.states, state(e.Stats(), base))
		lengths := make([]int, len(seqs))
		for i, s := range seqs {
			lengths[i] = s.Outputs()
		}
		r.lengths = append(r.lengths, lengths)
	}
	t.Fatal("the scenario does not end")
	return r
}

// compare demands that every scrape equals the state after one of the steps, in order.
func compare(t *testing.T, scrapes, states []scrape) {
	t.Helper()
	at := 0
	for _, want := range scrapes {
		when := want.T
		want.T, want.KV = 0, round4(want.KV)
		found := false
		var near []scrape
		for i := at; i < len(states) && !found; i++ {
			if found = states[i] == want; found {
				at = i
			} else if states[i].Generated == want.Generated {
				near = append(near, states[i])
			}
		}
		if !found {
			t.Errorf("scrape at %.3f s:\n  recorded %+v\n  model at that token count %+v", when, want, near)
		}
	}
	told(t, "running, waiting, usage, queries, hits, preemptions, tokens", len(scrapes), len(scrapes))
}

// told prints, under go test -v, how much of a recording was compared (make fidelity).
func told(t *testing.T, what string, matched, of int) {
	t.Helper()
	if testing.Verbose() && !t.Failed() {
		fmt.Printf("fidelity: %-32s %-60s %3d of %3d\n", strings.TrimPrefix(t.Name(), "TestRecorded"), what, matched, of)
	}
}
