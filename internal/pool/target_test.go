package pool

import (
	"testing"

	"pointsman.dev/pointsman/internal/discover"
)

// An address that another pod has now is another endpoint: nothing of what the first one was sent counts for it.
func TestTargetIDs(t *testing.T) {
	p, _ := testPool(t, 1, Config{Policy: Prefix})
	of := func(id string) *slot {
		p.SetTargets([]discover.Target{{URL: addr(0), ID: id}})
		return p.slots[p.byURL[addr(0)]]
	}
	first := of("")
	if of("uid-1") != first {
		t.Error("an ID that became known made another endpoint")
	}
	if of("") != first {
		t.Error("a source that says no ID made another endpoint")
	}
	second := of("uid-2")
	if second == first || !first.leaving || second.leaving || second.hasRep {
		t.Error("another ID did not make another endpoint")
	}
	if of("uid-2") != second {
		t.Error("the same ID made another endpoint")
	}
}

// What the source knows of a model server stands in until the server says it itself.
func TestTargetSettings(t *testing.T) {
	p, _ := testPool(t, 1, Config{})
	said := discover.Settings{MaxNumSeqs: 8, MaxBatchedTokens: 4096, MaxModelLen: 1000, PrefixCaching: discover.Off}
	set := func(s discover.Settings, r Report) *slot {
		p.SetTargets([]discover.Target{{URL: addr(0), Settings: s}})
		p.Report(addr(0), r)
		return p.slots[0]
	}
	quiet := idle()
	quiet.MaxModelLen, quiet.PrefixCaching = Unknown, nil
	s := set(said, quiet)
	e := p.snap.Endpoints[0]
	if e.MaxNumSeqs != 8 || e.Budget != 4096 || e.MaxModelLen != 1000 || p.caches(s) {
		t.Errorf("the settings are not in force: %+v, caches %v", e, p.caches(s))
	}
	quiet.Ranks = 2
	set(said, quiet)
	if e := p.snap.Endpoints[0]; e.MaxNumSeqs != 16 {
		t.Errorf("two ranks run %d sequences, want 16", e.MaxNumSeqs)
	}
	own := idle()
	own.MaxNumSeqs = 32
	s = set(said, own)
	if e := p.snap.Endpoints[0]; e.MaxNumSeqs != 32 || e.MaxModelLen != 32768 || !p.caches(s) {
		t.Errorf("the server's own word does not count: %+v", e)
	}
}
