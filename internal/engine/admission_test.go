package engine_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/engine"
)

// Admission rules at 20 blocks of 4: who runs after one pass.
func TestAdmission(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*engine.Config)
		add    []*engine.Seq
		want   int // running after one pass
	}{
		{"all fit", nil, []*engine.Seq{seq(1, 20, 9), seq(2, 20, 9)}, 2},
		{"the head does not fit and holds a small one", nil, []*engine.Seq{seq(1, 40, 9), seq(2, 48, 9), seq(3, 4, 9)}, 1},
		{"the first chunk is enough without the reserve", func(c *engine.Config) { c.FirstChunkOnly = true }, []*engine.Seq{seq(1, 40, 9), seq(2, 48, 9), seq(3, 4, 9)}, 2},
		{"slots", func(c *engine.Config) { c.MaxNumSeqs = 2 }, []*engine.Seq{seq(1, 4, 9), seq(2, 4, 9), seq(3, 4, 9)}, 2},
		{"watermark keeps blocks free while something runs", func(c *engine.Config) { c.Watermark = 0.5 }, []*engine.Seq{seq(1, 40, 9), seq(2, 4, 9)}, 1},
		{"watermark does not hold for the first", func(c *engine.Config) { c.Watermark = 0.9 }, []*engine.Seq{seq(1, 60, 9)}, 1},
	} {
		e := small(c.change)
		add(t, e, c.add...)
		pass(t, e)
		if s := e.Stats(); s.Running != c.want || s.Waiting != len(c.add)-c.want || s.Capacity != s.Waiting {
			t.Errorf("%s: running %d waiting %d (capacity %d), want %d of %d running", c.name, s.Running, s.Waiting, s.Capacity, c.want, len(c.add))
		}
	}
}

// A prompt whose blocks others hold costs only the rest; blocks that are merely cached cost as much as free ones.
func TestAdmissionCountsSharedBlocks(t *testing.T) {
	shared := func() *engine.Seq { return seq(1, 41, 9) } // 11 blocks, 10 of them full
	e := small(nil)
	add(t, e, shared())
	pass(t, e)
	add(t, e, seq(2, 16, 9)) // 4 + 1 blocks for the next tokens: 20-11-4 = 5 free
	pass(t, e)
	add(t, e, shared())
	pass(t, e)
	if s := e.Stats(); s.Running != 3 || s.Hits != 40 {
		t.Errorf("held by others: running %d, hits %d; want 3 and 40", s.Running, s.Hits)
	}

	e = small(nil)
	add(t, e, seq(1, 41, 1))
	pass(t, e) // ends at once, 10 blocks stay cached
	add(t, e, seq(2, 44, 9), shared())
	pass(t, e)
	if s := e.Stats(); s.Running != 1 {
		t.Errorf("cached only: running %d, want 1 (9 free blocks and 11 needed)", s.Running)
	}
}

func TestPriority(t *testing.T) {
	prio := func(s *engine.Seq, p int32) *engine.Seq { s.Priority = p; return s }
	e := small(func(c *engine.Config) { c.Priority, c.MaxNumSeqs = true, 2 })
	add(t, e, prio(seq(1, 4, 2), 5), prio(seq(2, 4, 2), 1), prio(seq(3, 4, 2), 1), prio(seq(4, 4, 2), 0))
	wantPasses(t, e, []string{"4", "2"}, []string{"4:length", "2:length"}, []string{"3", "1"})

	// The least important gives way, although another was admitted last.
	e = small(func(c *engine.Config) { c.Priority = true })
	low, high := prio(seq(1, 39, 30), 9), prio(seq(2, 39, 30), 1)
	add(t, e, low)
	pass(t, e)
	add(t, e, high)
	for e.Stats().Preempted == 0 {
		pass(t, e)
	}
	if s := e.Stats(); s.Running != 1 || s.Waiting != 1 {
		t.Fatalf("running %d waiting %d after the preemption", s.Running, s.Waiting)
	}
	_, out := pass(t, e)
	if !slices.Equal(out, []string{"2"}) {
		t.Errorf("%v goes on, want the more important", out)
	}
}

// One that lacks an adapter slot steps aside and counts as deferred; it does not hold those behind it.
func TestAdapterSlots(t *testing.T) {
	adapter := func(s *engine.Seq, a int32) *engine.Seq { s.Adapter = a; return s }
	e := small(func(c *engine.Config) { c.MaxLoras = 1 })
	add(t, e, adapter(seq(1, 4, 3), 7), adapter(seq(2, 4, 3), 8), adapter(seq(5, 4, 3), 8), adapter(seq(3, 4, 3), 7), seq(4, 4, 3))
	_, out := pass(t, e)
	if diff := cmp.Diff([]string{"1", "3", "4"}, out); diff != "" {
		t.Errorf("first step (-want +got):\n%s", diff)
	}
	if s := e.Stats(); s.Waiting != 2 || s.Deferred != 2 || s.Capacity != 0 {
		t.Errorf("waiting %d, deferred %d, capacity %d; want 2, 2, 0", s.Waiting, s.Deferred, s.Capacity)
	}
	wantPasses(t, e, []string{"1", "3", "4"}, []string{"1:length", "3:length", "4:length"}, []string{"2", "5"})
}

// Preemption: last admitted first, no admission in that step, front of the line, counter only with the next token.
func TestPreemptionOrder(t *testing.T) {
	e := small(nil)
	add(t, e, seq(1, 24, 30), seq(2, 24, 30), seq(3, 24, 30))
	pass(t, e)
	add(t, e, seq(4, 2, 30)) // waits: 21 - 1 - 18 = 2 free blocks, and the three need more soon
	var st engine.Step
	for e.Stats().Preempted == 0 {
		st, _ = pass(t, e)
	}
	if st.Admitted != 0 {
		t.Errorf("%d admitted in a step with a preemption", st.Admitted)
	}
	if s := e.Stats(); s.Preemptions != 0 {
		t.Errorf("preemption booked before the victim emits again: %d", s.Preemptions)
	}
	queries := e.Stats().Queries
	for e.Stats().Preemptions == 0 {
		pass(t, e)
	}
	if s := e.Stats(); s.Recomputed == 0 || s.Queries > queries+2 {
		t.Errorf("recomputed %d; queries %d -> %d: a resumed sequence is looked up but not counted", s.Recomputed, queries, s.Queries)
	}
}

// When a less important sequence that already has its tokens gives way, those tokens go to the prompt behind, unless its own chunk
// was what lacked the block; and nobody is passed over.
func TestPreemptionRefundsTheBudget(t *testing.T) {
	most := 0
	for i := range 36 {
		e := small(func(c *engine.Config) { c.Priority, c.FirstChunkOnly, c.MaxBatchedTokens = true, true, 3 })
		low, high, long := seq(1, 3+i/6, 60), seq(2, 3+i%6, 60), seq(3, 60, 9)
		low.Priority = 1
		add(t, e, low)
		pass(t, e)
		add(t, e, high, long)
		for e.Stats().Preempted == 0 {
			if st, out := pass(t, e); st.Evicted > 0 && st.Decodes+st.Prefill > 0 {
				most = max(most, st.Decodes+st.Prefill)
				if !slices.Equal(out, []string{"2"}) || st.Prefill == 0 {
					t.Errorf("case %d: %v emitted, %d prefill tokens: somebody was passed over", i, out, st.Prefill)
				}
			}
		}
	}
	if most != 3 {
		t.Errorf("at most %d tokens in a step with a preemption, want the budget of 3", most)
	}
}

// A held-back head of the line is looked at again when somebody else comes to hold its cached blocks: they cost nothing then.
func TestHeldBackSeesBlocksTakenUpByOthers(t *testing.T) {
	e := small(func(c *engine.Config) { c.Priority = true })
	add(t, e, seq(1, 33, 1))
	pass(t, e) // leaves 8 cached blocks
	busy := seq(2, 33, 3)
	head := seq(1, 60, 1) // 15 blocks, 8 of them cached but free, and 11 are free
	head.Priority = 1
	add(t, e, busy, head)
	pass(t, e)
	if s := e.Stats(); s.Running != 1 || s.Waiting != 1 {
		t.Fatalf("running %d waiting %d", s.Running, s.Waiting)
	}
	add(t, e, seq(1, 34, 30)) // takes the 8 up
	passes(t, e, 2)           // busy ends: 2 + 9 blocks free, 7 needed
	if _, out := pass(t, e); !slices.Contains(out, "1:length") {
		t.Errorf("%v emitted: the head is still held back", out)
	}
}
