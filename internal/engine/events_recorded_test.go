package engine_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/engine"
)

// blockBatch is one recorded message of block events: what one step did to the cache.
type blockBatch struct {
	Seq    int
	Events []blockEvent
}

// blockEvent is one of stored and removed, or the cache was cleared.
type blockEvent struct {
	Stored, Removed []string // hashes
	Parent          string
	Tokens          int
}

// words turns a batch into words in which blocks have numbers, given in order of their first appearance.
func (b *blockBatch) words(number func(string) string) []string {
	var out []string
	for _, e := range b.Events {
		switch {
		case len(e.Stored) > 0:
			w := fmt.Sprintf("store %d tokens after %s:", e.Tokens, number(e.Parent))
			for _, h := range e.Stored {
				w += " " + number(h)
			}
			out = append(out, w)
		case len(e.Removed) > 0:
			out = append(out, "remove "+number(e.Removed[0]))
		}
	}
	return out
}

// numbers names hashes 0, 1, 2, ... in the order in which they are seen; "" is the start of every prompt.
func numbers() func(string) string {
	seen := map[string]string{"": "nothing"}
	return func(h string) string {
		if seen[h] == "" {
			seen[h] = fmt.Sprint(len(seen) - 1)
		}
		return seen[h]
	}
}

// Which blocks are stored by which step, with which parent, and which are evicted for them, in which order: cold, a shared prefix,
// a salt, blocks filled by decoding, prompts in chunks, eviction. Recorded: kv-events/batches (messages 172 to 175 were not kept;
// they stored chunks of the prompt that message 171 begins).
func TestRecordedBlockEvents(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "kv-events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var recorded32 []blockBatch
	for line := range bytes.Lines(data) {
		var b blockBatch
		if err := json.Unmarshal(line, &b); err != nil {
			t.Fatal(err)
		}
		recorded32 = append(recorded32, b)
	}
	model := modelEvents(t)
	const missingFrom, missing = 171, 4
	want, got := numbers(), numbers()
	at := 0
	for _, b := range recorded32 {
		if b.Seq > missingFrom && at < len(model) && b.Seq == missingFrom+missing+1 {
			for _, m := range model[at : at+missing] {
				w := m.words(got)
				if len(w) != 1 || !strings.HasPrefix(w[0], "store 256 tokens") {
					t.Errorf("in a message that was not kept, the model does %q", w)
				}
				for _, h := range m.Events[0].Stored {
					want("not kept " + h) // takes a number
				}
			}
			at += missing
			// The first block after them names the last of them as its parent.
			lost := model[at-1].Events[0].Stored
			alias := want
			want = func(h string) string {
				if h == b.Events[len(b.Events)-1].Parent {
					return alias("not kept " + lost[len(lost)-1])
				}
				return alias(h)
			}
		}
		if at == len(model) {
			t.Fatalf("message %d was recorded; the model has only %d", b.Seq, len(model))
		}
		if w, g := b.words(want), model[at].words(got); !slices.Equal(w, g) {
			t.Fatalf("message %d:\nrecorded %q\nmodel    %q", b.Seq, w, g)
		}
		at++
	}
	if at != len(model) {
		t.Errorf("the model has %d messages more", len(model)-at)
	}
	told(t, "blocks stored, their parents, evictions in order", len(recorded32), len(recorded32))
}

// modelEvents plays the prompts of the recording through the model.
func modelEvents(t *testing.T) []blockBatch {
	t.Helper()
	var batches []blockBatch
	var now blockBatch
	cfg := recorded()
	name := func(h uint64) string { return fmt.Sprintf("%x", h) }
	cfg.OnBlocks = func(e engine.BlockEvent) {
		if e.Kind == engine.BlockRemoved {
			now.Events = append(now.Events, blockEvent{Removed: []string{name(e.Hash)}})
			return
		}
		x := blockEvent{Tokens: 32 * e.Count}
		if e.Parent != 0 {
			x.Parent = name(e.Parent)
		}
		for i := range e.Count {
			x.Stored = append(x.Stored, name(e.Seq.BlockHash(e.First+i)))
		}
		now.Events = append(now.Events, x)
	}
	e := engine.New(cfg)
	shared := prompt(1, 96)
	for _, s := range []engine.Seq{
		{Tokens: slices.Concat(shared, prompt(2, 3)), MaxTokens: 4},
		{Tokens: slices.Concat(shared[:64], prompt(3, 40)), MaxTokens: 4},
		{Tokens: shared[:64], MaxTokens: 4, Salt: 7},
		{Tokens: prompt(4, 20), MaxTokens: 50},
		{Tokens: prompt(5, 600), MaxTokens: 4},
		{Tokens: prompt(6, 1900), MaxTokens: 4},
		{Tokens: prompt(7, 300), MaxTokens: 4},
	} {
		if err := e.Add(&s); err != nil {
			t.Fatal(err)
		}
		for st, ok := e.Schedule(); ok; st, ok = e.Schedule() {
			e.Finish(st)
			if len(now.Events) > 0 {
				batches = append(batches, now)
				now = blockBatch{}
			}
		}
	}
	return batches
}
