package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/engine"
)

// The gauges while asleep and paused, in the three modes. Recorded: scenarios/sleep-pause.
func TestRecordedSleepAndPause(t *testing.T) {
	var cases []struct {
		Case    string
		Metrics map[string]float64
		Running float64
		Finish  string
		New     struct{ Metrics map[string]float64 } `json:"new_request_while_paused"`
		Resumed map[string]any                       `json:"after_resume"`
		Done    json.RawMessage                      `json:"usage"`
	}
	readJSON(t, "sleep-pause.json", &cases)
	gauges := func(m map[string]float64) []float64 {
		return []float64{m["num_requests_running"], m["num_requests_waiting"]}
	}
	model := func(e *engine.Engine) []float64 {
		return []float64{float64(e.Stats().Running), float64(e.Stats().Waiting)}
	}
	same := func(name string, recorded, got []float64) {
		t.Helper()
		if diff := cmp.Diff(recorded, got); diff != "" {
			t.Errorf("%s: running, waiting (-recorded +model):\n%s", name, diff)
		}
	}
	e := engine.New(recorded())
	still := func() {
		t.Helper()
		if _, ok := e.Schedule(); ok {
			t.Error("it steps")
		}
	}

	e.Sleep()
	sleeper := seq(1, 20, 5)
	add(t, e, sleeper)
	still()
	same(cases[0].Case, gauges(cases[0].Metrics), model(e))
	e.Resume()
	passes(t, e, 5) // "after wake_up": the request finishes, nothing cached

	add(t, e, seq(2, 20, 40))
	passes(t, e, 13)
	e.Pause(engine.PauseKeep)
	still()
	add(t, e, seq(3, 20, 5))
	still()
	same(cases[2].Case, gauges(cases[2].New.Metrics), model(e)) // the gauge of the running one stands
	e.Resume()
	_, out := pass(t, e)
	if diff := cmp.Diff([]string{"2", "3"}, out); diff != "" {
		t.Errorf("after resume (-want +got):\n%s", diff)
	}
	if got := e.Stats().Preemptions; got != 1 {
		t.Errorf("preemptions %d after pausing in mode keep, recorded 1 over the modes", got)
	}
	drain(e)

	add(t, e, seq(4, 20, 200))
	passes(t, e, 93)
	e.Pause(engine.PauseAbort)
	if _, out := pass(t, e); len(out) != 1 || out[0] != "4:"+cases[3].Finish {
		t.Errorf("mode abort ends with %v, recorded %q", out, cases[3].Finish)
	}
	add(t, e, seq(5, 20, 5))
	still()
	same(cases[3].Case, gauges(cases[3].New.Metrics), model(e))
	if got := e.Stats().DoneAbort; got != 1 {
		t.Errorf("request_success{abort} %d, want 1", got)
	}
	e.Resume()
	drain(e)

	add(t, e, seq(6, 20, 30))
	passes(t, e, 5)
	e.Pause(engine.PauseWait)
	add(t, e, seq(7, 20, 5))
	for !e.Paused() {
		if _, out := pass(t, e); len(out) != 1 {
			t.Fatalf("while mode wait lets one finish: %v", out)
		}
	}
	still()
	same(cases[4].Case, gauges(cases[4].Metrics), model(e))
	e.Resume()
	drain(e)
	if s := e.Stats(); s.DoneLength != 6 {
		t.Errorf("%d sequences ended by length, want all but the aborted one", s.DoneLength)
	}
	told(t, "running and waiting asleep and paused, what is aborted", 4, 4)
}

func drain(e *engine.Engine) {
	for st, ok := e.Schedule(); ok; st, ok = e.Schedule() {
		e.Finish(st)
	}
}

// A pause that comes during a step waits for it: its tokens are out.
func TestPauseDuringAStep(t *testing.T) {
	for mode, want := range map[engine.PauseMode][]engine.Output{
		engine.PauseKeep:  {{Index: 0, First: true}},
		engine.PauseAbort: {{Index: 0, First: true}, {Index: -1, Finished: engine.Aborted}},
	} {
		e := small(nil)
		add(t, e, seq(1, 4, 9))
		st, _ := e.Schedule()
		e.Pause(mode)
		if e.Paused() {
			t.Errorf("mode %d: paused while a step runs", mode)
		}
		var got []engine.Output
		for _, o := range e.Finish(st) {
			o.Seq, o.Token = nil, 0
			got = append(got, o)
		}
		if diff := cmp.Diff(want, got); diff != "" || !e.Paused() {
			t.Errorf("mode %d: paused %v (-want +got):\n%s", mode, e.Paused(), diff)
		}
		if mode == engine.PauseKeep {
			e.Resume()
			if pass(t, e); e.Stats().Recomputed != 4 {
				t.Errorf("recomputed %d tokens after mode keep, want all 4: the cache is cleared", e.Stats().Recomputed)
			}
		}
	}
}

// What was computed once counts as computed again however often it is lost: a sequence that is preempted twice, the second time before it
// was where it had been, recomputes all of its tokens then.
func TestRecomputedAfterTwoPreemptions(t *testing.T) {
	e := small(func(c *engine.Config) { c.MaxBatchedTokens = 4 })
	add(t, e, seq(1, 12, 9))
	for _, passes := range []int{3, 1, 3} { // of 4 tokens each
		for range passes {
			pass(t, e)
		}
		e.Pause(engine.PauseKeep)
		e.Resume()
	}
	if n := e.Stats().Recomputed; n != 4+12 {
		t.Errorf("recomputed %d tokens, want the 4 before the second preemption and the 12 after it", n)
	}
}

func TestResetPrefixCache(t *testing.T) {
	var events []engine.EventKind
	e := small(func(c *engine.Config) { c.OnBlocks = func(ev engine.BlockEvent) { events = append(events, ev.Kind) } })
	add(t, e, seq(1, 9, 2))
	pass(t, e)
	if e.ResetPrefixCache() {
		t.Error("reset while blocks are in use")
	}
	drain(e)
	if !e.ResetPrefixCache() {
		t.Error("no reset of an idle engine")
	}
	add(t, e, seq(1, 9, 1))
	pass(t, e)
	if s := e.Stats(); s.Hits != 0 {
		t.Errorf("hits %d after a reset", s.Hits)
	}
	if diff := cmp.Diff([]engine.EventKind{engine.BlockStored, engine.BlocksCleared, engine.BlockStored}, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Events: one store per chunk and per filled decode block, evictions one by one and before the store that needs the room, hits
// nothing (recorded: kv-events/batches).
func TestBlockEvents(t *testing.T) {
	type event struct {
		Kind         engine.EventKind
		First, Count int
	}
	var got []event
	var removed, stored []uint64
	e := small(func(c *engine.Config) {
		c.MaxBatchedTokens = 32
		c.OnBlocks = func(ev engine.BlockEvent) {
			got = append(got, event{ev.Kind, ev.First, ev.Count})
			if ev.Kind == engine.BlockRemoved {
				removed = append(removed, ev.Hash)
				return
			}
			for i := range ev.Count {
				stored = append(stored, ev.Seq.BlockHash(ev.First+i))
			}
			if ev.First > 0 && ev.Parent != ev.Seq.BlockHash(ev.First-1) {
				t.Errorf("parent of block %d is %x", ev.First, ev.Parent)
			}
		}
	})
	want := func(what string, events ...event) {
		t.Helper()
		if diff := cmp.Diff(events, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		got = nil
	}
	add(t, e, seq(1, 39, 3))
	passes(t, e, 2)
	want("39 tokens in chunks of 32", event{engine.BlockStored, 0, 8}, event{engine.BlockStored, 8, 1})
	drain(e)
	want("the decode fills block 9", event{engine.BlockStored, 9, 1})
	add(t, e, seq(1, 13, 1))
	drain(e)
	want("a hit of three blocks")
	add(t, e, seq(2, 60, 1)) // 15 blocks; 20 - 10 cached = 10 unhashed, so 5 evictions
	drain(e)
	want("a prompt that needs cached blocks",
		event{engine.BlockStored, 0, 8}, event{engine.BlockRemoved, 0, 0}, event{engine.BlockRemoved, 0, 0}, event{engine.BlockRemoved, 0, 0},
		event{engine.BlockRemoved, 0, 0}, event{engine.BlockRemoved, 0, 0}, event{engine.BlockStored, 8, 7})
	for i, h := range removed { // tail first
		if h != stored[9-i] {
			t.Errorf("eviction %d is not block %d of the first prompt", i, 9-i)
		}
	}
}

// A copied cache holds what fits, the latest used; what does not fit the block size, or an engine without a cache, takes nothing.
func TestCopyCache(t *testing.T) {
	hit := func(e *engine.Engine, id int) int {
		t.Helper()
		add(t, e, seq(id, 16, 1))
		st, ok := e.Schedule()
		if !ok {
			t.Fatal("nothing to do")
		}
		return e.Finish(st)[0].Cached
	}
	from := small(nil)
	for id := 1; id <= 4; id++ {
		hit(from, id)
	}
	add(t, from, seq(5, 16, 9))
	pass(t, from) // 5 is running: its blocks are the last to become free
	for id, want := range []int{1: 0, 3: 0, 4: 12, 5: 12} {
		to := small(func(c *engine.Config) { c.Blocks, c.MaxModelLen = 9, 0 })
		to.CopyCache(from)
		if st := to.Stats(); st.UsedBlocks != 0 || id > 0 && hit(to, id) != want {
			t.Errorf("prompt %d: want a hit of %d tokens; %d blocks in use", id, want, st.UsedBlocks)
		}
	}
	for _, change := range []func(*engine.Config){func(c *engine.Config) { c.BlockSize = 8 }, func(c *engine.Config) { c.PrefixCaching = false }} {
		to := small(change)
		to.CopyCache(from)
		if got := hit(to, 4); got != 0 {
			t.Errorf("a hit of %d tokens", got)
		}
	}
}
