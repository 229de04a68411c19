package peers

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
)

// mesh is some replicas and a stream of bytes between each two, without a network.
type mesh struct {
	t       *testing.T
	rnd     *rand.Rand
	pools   []*pool.Pool
	open    [][]*sent
	streams []*tape
}

// sent is a request in flight.
type sent struct {
	*pool.Booking
	begun bool // its first token was seen
}

// tape is what one replica tells another: messages on their way.
type tape struct {
	from, to *pool.Pool
	peer     *pool.Peer
	w        *writer
	r        *reader
	under    [][]byte
	behind   bool
}

const meshEndpoints = 3

func newMesh(t *testing.T, seed uint64, n int) *mesh {
	m := &mesh{t: t, rnd: rand.New(rand.NewPCG(seed, 5)), open: make([][]*sent, n)}
	for range n {
		p := replicaPool(t, meshEndpoints)
		p.Share()
		m.pools = append(m.pools, p)
	}
	for i, from := range m.pools {
		for k, to := range m.pools {
			if i != k {
				s := &tape{from: from, to: to}
				s.connect(t)
				m.streams = append(m.streams, s)
			}
		}
	}
	return m
}

// connect starts a stream anew: what was on its way is lost, what the peer had is forgotten, a full state has to follow.
func (s *tape) connect(t *testing.T) {
	if s.peer != nil {
		s.peer.Close()
	}
	s.peer, s.under, s.behind = s.to.NewPeer(), nil, true
	s.r = newReader(true, func(string) *pool.Peer { return s.peer })
	s.w = newWriter(func(parts []*wire.Pool) error {
		raw, err := proto.Marshal(&wire.Message{Batch: &wire.Batch{Pools: parts}})
		if len(raw) > maxMessage {
			t.Fatalf("a message of %d bytes", len(raw))
		}
		s.under = append(s.under, raw)
		return err
	})
}

// deliver lets the oldest message arrive.
func (s *tape) deliver(t *testing.T) {
	if len(s.under) == 0 {
		return
	}
	var got wire.Message
	if err := proto.Unmarshal(s.under[0], &got); err != nil {
		t.Fatal(err)
	}
	if err := s.r.take(got.GetBatch()); err != nil {
		t.Fatal(err)
	}
	s.under = s.under[1:]
}

// tell takes what happened at replica i and writes it to the others, but for batches that are dropped.
func (m *mesh) tell(i int, drop bool) {
	events, _, lost := m.pools[i].Take()
	for _, s := range m.streams {
		if s.from != m.pools[i] {
			continue
		}
		s.behind = s.behind || lost
		if drop && m.rnd.IntN(2) == 0 {
			s.behind = true
			continue
		}
		if s.behind {
			s.behind = false
			if err := s.w.state("chat", s.from); err != nil {
				m.t.Fatal(err)
			}
		}
		if err := s.w.events("chat", events); err != nil {
			m.t.Fatal(err)
		}
		if err := s.w.flush(); err != nil {
			m.t.Fatal(err)
		}
	}
}

// settle lets everything arrive.
func (m *mesh) settle() {
	for range 2 {
		for i := range m.pools {
			m.tell(i, false)
		}
		for _, s := range m.streams {
			for len(s.under) > 0 {
				s.deliver(m.t)
			}
		}
	}
}

func (m *mesh) pick(i int) {
	chain := conversation(nil, m.rnd.Uint64N(40), 20+m.rnd.IntN(60))
	b, err := m.pools[i].Pick(&pool.Request{Blocks: chain, PromptBytes: int(chain[len(chain)-1].End), N: m.rnd.IntN(3), Whole: m.rnd.IntN(5) == 0})
	if err != nil {
		m.t.Fatal(err)
	}
	m.open[i] = append(m.open[i], &sent{Booking: b})
}

// step does one thing somewhere.
func (m *mesh) step(losses bool) {
	i := m.rnd.IntN(len(m.pools))
	mine := m.open[i]
	s := m.streams[m.rnd.IntN(len(m.streams))]
	switch what := m.rnd.IntN(100); {
	case what < 25 && len(mine) < 12 || len(mine) == 0:
		m.pick(i)
	case what < 40:
		b := mine[m.rnd.IntN(len(mine))]
		b.FirstToken()
		b.begun = true
	case what < 50:
		mine[m.rnd.IntN(len(mine))].Progress(m.rnd.IntN(300))
	case what < 54:
		if k := m.rnd.IntN(len(mine)); !mine[k].begun && !mine[k].Repick(health.KindConnect) {
			mine[k].Done(pool.Result{Outcome: pool.UpstreamError})
			m.open[i] = slices.Delete(mine, k, k+1)
		}
	case what < 65:
		m.end(i, m.rnd.IntN(len(mine)))
	case what < 80:
		m.tell(i, losses && m.rnd.IntN(4) == 0)
	case what < 98:
		s.deliver(m.t)
	case losses:
		s.connect(m.t)
	}
}

// end ends a request: a third of those without a first token were given up, others had one that nobody saw.
func (m *mesh) end(i, k int) {
	r := pool.Result{Outcome: pool.OK, HasUsage: true, Usage: pool.Usage{Prompt: 3000, Output: 5}}
	if m.rnd.IntN(3) == 0 {
		r = pool.Result{Outcome: pool.ClientCancelled}
	}
	m.open[i][k].Done(r)
	m.open[i] = slices.Delete(m.open[i], k, k+1)
}

// belief is what a replica makes of an endpoint, of all requests whoever sent them.
type belief struct {
	Requests, Blocks int
	Computed         []uint64 // hashes of those whose prefill was seen
}

func (m *mesh) beliefs(p *pool.Pool) (all []belief) {
	st := p.Status()
	for i, e := range st.Endpoints {
		own, _ := p.State(i)
		if own.Endpoint != e.URL {
			m.t.Fatalf("endpoint %d is %s and %s", i, own.Endpoint, e.URL)
		}
		all = append(all, belief{Requests: e.InFlight + e.Peers, Blocks: e.HeldBlocks, Computed: hashes(own.Held)})
	}
	return all
}

// hashes are those of all blocks of chains, each once, in order.
func hashes(chains [][]prefix.Block) (all []uint64) {
	for _, c := range chains {
		for _, b := range c {
			all = append(all, b.Hash)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (m *mesh) agree(seed uint64, when string) {
	m.t.Helper()
	want := m.beliefs(m.pools[0])
	for i, p := range m.pools[1:] {
		if d := cmp.Diff(want, m.beliefs(p)); d != "" {
			m.t.Fatalf("seed %d, %s: replica 0 believes (-), and replica %d (+):\n%s", seed, when, i+1, d)
		}
	}
}

// TestReplicasBelieveTheSame: whatever happens to requests at two or three replicas, and whenever the others hear of it, in the end all of
// them believe the same of every endpoint; also when batches are dropped and streams break.
func TestReplicasBelieveTheSame(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		m := newMesh(t, seed, 2+int(seed%2))
		for range 4 {
			for range 150 {
				m.step(seed%4 >= 2)
			}
			m.settle()
			m.agree(seed, "in between")
		}
		for i := range m.open {
			for len(m.open[i]) > 0 {
				m.end(i, 0)
			}
		}
		m.settle()
		m.agree(seed, "at the end")
		for i, b := range m.beliefs(m.pools[0]) {
			if b.Requests != 0 {
				t.Errorf("seed %d: %d requests are left at endpoint %d", seed, b.Requests, i)
			}
		}
	}
}

// TestReplicasWhoseEndpointsChange: endpoints forget, restart, and come and go, for each replica at another time. Whatever they believe
// meanwhile, in the end nothing is counted that is not in flight, and everything that is, where its endpoint is known.
func TestReplicasWhoseEndpointsChange(t *testing.T) {
	for seed := range uint64(60) {
		m := newMesh(t, seed, 3)
		set := func(p *pool.Pool, n int, life string) {
			var to []discover.Target
			for k := range n {
				to = append(to, discover.Target{URL: address(k), ID: life})
			}
			p.SetTargets(to)
		}
		for range 600 {
			p := m.pools[m.rnd.IntN(3)]
			switch m.rnd.IntN(40) {
			case 0:
				set(p, 1+m.rnd.IntN(meshEndpoints), []string{"", "a", "b"}[m.rnd.IntN(3)])
			case 1:
				r := pool.EmptyReport()
				r.Running, r.Waiting, r.BlockSize, r.CapacityTokens = 0, 0, 16, float64(2000+m.rnd.IntN(40_000))
				r.PromptTokens = float64(m.rnd.IntN(3)) // a fall is a restart
				p.Report(address(m.rnd.IntN(meshEndpoints)), r)
			default:
				m.step(true)
			}
		}
		for _, p := range m.pools {
			set(p, meshEndpoints, "c")
		}
		for i := range m.open {
			for len(m.open[i]) > 0 {
				m.end(i, 0)
			}
			m.pick(i)
		}
		m.settle()
		for i, p := range m.pools {
			if st := p.Status(); st.InFlight != 1 || st.Peers != 2 {
				t.Errorf("seed %d: replica %d has %d of its own and %d of others in flight, want 1 and 2", seed, i, st.InFlight, st.Peers)
			}
			m.end(i, 0)
		}
		m.settle()
		for i, p := range m.pools {
			for _, e := range p.Status().Endpoints {
				if e.InFlight != 0 || e.Peers != 0 || e.ProjectedKV != nil && *e.ProjectedKV != 0 {
					t.Errorf("seed %d: replica %d still counts %d and %d requests at %s, projected %v", seed, i, e.InFlight, e.Peers, e.Name, e.ProjectedKV)
				}
			}
		}
	}
}

// TestChainsInAnyShape: single blocks, blocks that come back, and chains that are longer than the dictionary has room for between
// two uses arrive as they are, in the order in which they were sent.
func TestChainsInAnyShape(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	var out, in dictionary
	var before [][]prefix.Block
	for n := range 4000 {
		var c []prefix.Block
		switch rnd.IntN(5) {
		case 0: // the same again, maybe longer or shorter
			if len(before) > 0 {
				c = slices.Clone(before[max(0, len(before)-1-rnd.IntN(300))])
				c = c[:1+rnd.IntN(len(c))]
			}
		case 1: // a hash twice in one chain
			c = conversation(rnd, rnd.Uint64N(50), 10)
			c = append(c, prefix.Block{Hash: c[rnd.IntN(10)].Hash, End: c[9].End + 100})
		case 2:
			c = make([]prefix.Block, 1+rnd.IntN(3)*rnd.IntN(pool.MaxChain/4))
			for i := range c {
				c[i] = prefix.Block{Hash: rnd.Uint64(), End: int32(256*i + 1 + rnd.IntN(256))}
			}
		default:
			c = conversation(rnd, rnd.Uint64N(500), 1+rnd.IntN(60))
		}
		raw, err := proto.Marshal(out.encode(c))
		if err != nil {
			t.Fatal(err)
		}
		w := new(wire.Chain)
		if err = proto.Unmarshal(raw, w); err != nil {
			t.Fatal(err)
		}
		got, err := in.decode(w)
		if err != nil || !slices.Equal(got, c) {
			t.Fatalf("chain %d of %d blocks arrived as %d: %v", n, len(c), len(got), err)
		}
		if out.next != in.next {
			t.Fatalf("chain %d: the ends do not agree on how many blocks there were: %d and %d", n, out.next, in.next)
		}
		if len(c) > 0 {
			before = append(before, c)
		}
	}
	if out.next < 3*dictionarySize {
		t.Errorf("%d blocks: the dictionary did not go round", out.next)
	}
}
