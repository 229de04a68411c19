package peers

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/telemetry"
)

// slowPeer takes nothing for a while, then everything.
type slowPeer struct {
	wire.UnimplementedExchangeServer
	pool   *pool.Peer
	states atomic.Int32
	resume chan struct{}
}

// Tell implements wire.ExchangeServer.
func (s *slowPeer) Tell(stream grpc.BidiStreamingServer[wire.Message, wire.Answer]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&wire.Answer{Hello: hello()}); err != nil {
		return err
	}
	r := newReader(true, func(string) *pool.Peer { return s.pool })
	for n := 0; ; n++ {
		if n == 3 {
			<-s.resume
		}
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := r.take(m.GetBatch()); err != nil {
			return err
		}
		for _, p := range m.GetBatch().GetPools() {
			if p.GetStateEnds() {
				s.states.Add(1)
			}
		}
		if err := stream.Send(&wire.Answer{Taken: m.GetBatch().GetNumber()}); err != nil {
			return err
		}
	}
}

// TestPeerThatIsSlow: picks wait for it in a bounded queue; what does not fit is made good by a full state, and nothing is left over.
func TestPeerThatIsSlow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	there := replicaPool(t, 2)
	slow := &slowPeer{pool: there.NewPeer(), resume: make(chan struct{})}
	ln := listen(t)
	server := grpc.NewServer()
	wire.RegisterExchangeServer(server, slow)
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	r := start(t, listen(t), replicaPool(t, 2), nil, ln.Addr().String())
	soon(t, "it is connected", func() bool { return r.x.count()[telemetry.PeerConnected] == 1 })

	var open []*pool.Booking
	long := func(id uint64) *pool.Request { // 8 kB of hashes
		chain := make([]prefix.Block, 1000)
		for i := range chain {
			chain[i] = prefix.Block{Hash: id<<32 + uint64(i) + 1, End: int32(256 * (i + 1))}
		}
		return &pool.Request{Blocks: chain, PromptBytes: 256_000}
	}
	overflows := func() bool {
		r.x.mu.Lock()
		defer r.x.mu.Unlock()
		return r.x.links[ln.Addr().String()].behind.Load()
	}
	for id := uint64(0); id < 20 || !overflows(); id++ { // 2 s of batches may wait
		if id == 2000 {
			t.Fatal("its queue takes everything")
		}
		b, err := r.pool.Pick(long(id + 1))
		if err != nil {
			t.Fatal(err)
		}
		if open = append(open, b); id%2 == 0 {
			done(open[0])
			open = open[1:]
		}
		time.Sleep(gather)
	}
	if there.Status().Peers == len(open) {
		t.Fatal("it knows everything, although it takes nothing")
	}
	close(slow.resume)
	soon(t, "it knows everything", func() bool { return slow.states.Load() >= 2 && slow.pool.Len() == len(open) })
	for _, b := range open {
		done(b)
	}
	soon(t, "it knows that nothing is left", func() bool { return slow.pool.Len() == 0 })
	if st := there.Status(); st.Peers != 0 {
		t.Errorf("%d requests are left", st.Peers)
	}
}

// TestOwnAddressFromDNS: a name leads to the replica itself as well, and it does not take itself for a peer.
func TestOwnAddressFromDNS(t *testing.T) {
	ln := listen(t)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	r := start(t, ln, replicaPool(t, 1), func(x *Exchange) { x.cfg.DNS = "localhost:" + port })
	soon(t, "it is found", func() bool {
		r.x.mu.Lock()
		defer r.x.mu.Unlock()
		l := r.x.links["127.0.0.1:"+port]
		if l == nil {
			return false
		}
		_, other := l.status()
		return !other
	})
	for _, p := range r.x.Status() {
		if strings.HasPrefix(p.Address, "127.") {
			t.Errorf("it takes itself for a peer: %+v", p)
		}
	}
	if r.pool.Status().Peers != 0 {
		t.Error("it counts its own requests twice")
	}
}
