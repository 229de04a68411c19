package peers

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
)

// conversation makes chains of a few conversations that grow turn by turn behind a few system prompts.
func conversation(rnd *rand.Rand, id uint64, blocks int) []prefix.Block {
	chain := make([]prefix.Block, blocks)
	h, end := id%5+1, int32(0)
	for i := range chain {
		if i == 30 {
			h += id * 0x9e3779b97f4a7c15
		}
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		end += 256
		if h%7 == 0 {
			end -= int32(h % 200)
		}
		chain[i] = prefix.Block{Hash: h, End: end}
	}
	return chain
}

// TestChainsArrive: whatever is sent arrives as it was, also long after both ends forgot what they could refer to.
func TestChainsArrive(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var out, in dictionary
	sent, plain := 0, 0
	for range 20_000 {
		want := conversation(rnd, rnd.Uint64N(4000), 20+rnd.IntN(100))
		c := out.encode(want)
		sent, plain = sent+proto.Size(c), plain+9*len(want)
		got, err := in.decode(c)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%d blocks arrived as %d: %v", len(want), len(got), err)
		}
	}
	if len(out.at) > dictionarySize || len(in.nodes) > dictionarySize || out.next < 2*dictionarySize {
		t.Errorf("%d hashes, %d blocks remembered after %d", len(out.at), len(in.nodes), out.next)
	}
	if sent*3 > plain*2 {
		t.Errorf("%d bytes were sent, %d would be without what is known", sent, plain)
	}
	long := make([]prefix.Block, pool.MaxChain)
	for i := range long {
		long[i] = prefix.Block{Hash: uint64(i) + 1<<40, End: int32(i+1) * 256}
	}
	for range 6 {
		if got, err := in.decode(out.encode(long)); err != nil || !slices.Equal(got, long) {
			t.Fatalf("the longest chain: %v", err)
		}
		for i := range long {
			long[i].Hash += 1 << 41
		}
	}
	if got, err := in.decode(out.encode(nil)); err != nil || got == nil && len(got) != 0 {
		t.Errorf("no chain: %v %v", got, err)
	}
}

func TestBadChains(t *testing.T) {
	for name, c := range map[string]*wire.Chain{
		"refers to nothing":       {Known: 1},
		"refers far back":         {Known: 1 << 31},
		"longer than any":         {Hashes: make([]uint64, pool.MaxChain+1)},
		"half a pair":             {Hashes: []uint64{1}, Odd: []uint32{0}},
		"empty block":             {Hashes: []uint64{1}, Odd: []uint32{0, 0}},
		"pairs out of order":      {Hashes: []uint64{1, 2, 3}, Odd: []uint32{2, 5, 1, 5}},
		"block that is not there": {Hashes: []uint64{1}, Odd: []uint32{1, 5}},
		"past all numbers":        {Hashes: []uint64{1, 2}, Odd: []uint32{0, 1<<31 - 1, 1, 1<<32 - 1}},
	} {
		var d dictionary
		if chain, err := d.decode(c); err == nil {
			t.Errorf("%s: taken as %v", name, chain)
		}
	}
}

// FuzzBatch: whatever bytes a peer sends, the pool's books stay within bounds, and are empty when the peer is forgotten.
func FuzzBatch(f *testing.F) {
	w := newWriter(func(parts []*wire.Pool) error {
		raw, err := proto.Marshal(&wire.Batch{Number: 1, Pools: parts})
		f.Add(raw)
		return err
	})
	chain := conversation(nil, 1, 60)
	_ = w.events("chat", []pool.Event{
		{Kind: pool.Booked, ID: 7, Endpoint: address(0), Blocks: chain, Prompt: 3000, Uncached: 100, Answers: 2, Expected: 200, Work: 0.5},
		{Kind: pool.Prefilled, ID: 7}, {Kind: pool.Streamed, ID: 7, Output: 64}, {Kind: pool.Booked, ID: 8, Endpoint: address(1), Blocks: chain[:50]}, {Kind: pool.Ended, ID: 7},
	})
	_ = w.flush()
	_ = w.state("chat", replicaPool(f, 2))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b wire.Batch
		if proto.Unmarshal(raw, &b) != nil {
			return
		}
		p := replicaPool(t, 2)
		q := p.NewPeer()
		r := newReader(true, func(name string) *pool.Peer {
			if name == "chat" {
				return q
			}
			return nil
		})
		_ = r.take(&b)
		_ = r.take(&b)
		k, err := p.Pick(&pool.Request{Blocks: chain, PromptBytes: int(chain[59].End)})
		if err != nil {
			t.Fatal(err)
		}
		k.Done(pool.Result{Outcome: pool.OK})
		q.Close()
		if st := p.Status(); st.Peers != 0 || st.InFlight != 0 || q.Len() != 0 {
			t.Errorf("%d requests of peers and %d of ours are left", st.Peers, st.InFlight)
		}
		for _, e := range p.Status().Endpoints {
			if e.ProjectedKV == nil || *e.ProjectedKV != 0 || e.HeldBytes < 0 {
				t.Errorf("%s: projected %v, holds %d bytes", e.Name, e.ProjectedKV, e.HeldBytes)
			}
		}
	})
}

// TestStateArrives: a full state says of each endpoint what it holds, also where requests are open at several of them.
func TestStateArrives(t *testing.T) {
	from, to := replicaPool(t, 3), replicaPool(t, 3)
	for id := range uint64(30) {
		if b := pick(t, from, id); id%4 == 0 {
			done(b)
		}
	}
	q := to.NewPeer()
	r := newReader(true, func(string) *pool.Peer { return q })
	w := newWriter(func(parts []*wire.Pool) error { return r.take(&wire.Batch{Pools: parts}) })
	if err := w.state("chat", from); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		want, _ := from.State(i)
		got, _ := to.State(i)
		if len(want.Held) < 2 || len(want.Open) == 0 {
			t.Fatalf("%s holds %d chains and has %d requests: nothing to see", want.Endpoint, len(want.Held), len(want.Open))
		}
		if d := cmp.Diff(tips(want.Held), tips(got.Held)); d != "" {
			t.Errorf("%s is believed to hold (-it says, +it is told):\n%s", want.Endpoint, d)
		}
	}
}

// tips are the last hashes of chains, in order.
func tips(chains [][]prefix.Block) (all []uint64) {
	for _, c := range chains {
		all = append(all, c[len(c)-1].Hash)
	}
	slices.Sort(all)
	return all
}
