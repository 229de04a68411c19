package peers

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

func address(i int) string { return fmt.Sprintf("http://10.0.0.%d:8000", i+1) }

// replicaPool is a pool of n endpoints that report that they are idle.
func replicaPool(t testing.TB, n int) *pool.Pool {
	t.Helper()
	p := pool.New(pool.Config{Name: "chat", StaleAfter: time.Hour}, nil, nil)
	var set []discover.Target
	for i := range n {
		set = append(set, discover.Target{URL: address(i)})
	}
	p.SetTargets(set)
	for i := range n {
		r := pool.EmptyReport()
		r.Running, r.Waiting, r.KVUsage, r.BlockSize, r.NumBlocks, r.CapacityTokens = 0, 0, 0, 16, 20000, 320000
		p.Report(address(i), r)
	}
	return p
}

// replica is one exchange with its pool.
type replica struct {
	x      *Exchange
	pool   *pool.Pool
	log    *safeLog
	at     string
	cancel context.CancelFunc
	ended  chan struct{}
}

type safeLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *safeLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// pair starts two replicas that know each other; change is for the second one.
func pair(t *testing.T, change func(*Exchange)) (a, b *replica) {
	t.Helper()
	la, lb := listen(t), listen(t)
	list := []string{la.Addr().String(), lb.Addr().String()}
	return start(t, la, replicaPool(t, 2), nil, list...), start(t, lb, replicaPool(t, 2), change, list...)
}

// start runs a replica on ln that tells those at list.
func start(t *testing.T, ln net.Listener, p *pool.Pool, change func(*Exchange), list ...string) *replica {
	t.Helper()
	r := &replica{pool: p, log: &safeLog{}, at: ln.Addr().String(), ended: make(chan struct{})}
	var err error
	r.x, err = New(Config{List: list, Release: "test", Metrics: telemetry.New(telemetry.Build{}).NewPeers, Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r.x)
	}
	r.x.SetPools([]*pool.Pool{p})
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(r.ended)
		if err := r.x.Run(ctx, ln); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *replica) stop() { r.cancel(); <-r.ended }

// soon waits until f holds.
func soon(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if f() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not within a minute: %s", what)
}

func (r *replica) hears(t *testing.T, n int) {
	t.Helper()
	soon(t, fmt.Sprintf("%s hears of %d requests", r.at, n), func() bool { return r.pool.Status().Peers == n })
}

func pick(t *testing.T, p *pool.Pool, id uint64) *pool.Booking {
	t.Helper()
	chain := conversation(nil, id, 60)
	b, err := p.Pick(&pool.Request{Blocks: chain, PromptBytes: int(chain[59].End)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func done(b *pool.Booking) {
	b.FirstToken()
	b.Done(pool.Result{Outcome: pool.OK, HasUsage: true, Usage: pool.Usage{Prompt: 3000, Output: 5}})
}

func TestThreeReplicas(t *testing.T) {
	t.Parallel()
	var lns []net.Listener
	var list []string
	for range 3 {
		ln := listen(t)
		lns, list = append(lns, ln), append(list, ln.Addr().String())
	}
	var all []*replica
	early := replicaPool(t, 2)
	before := pick(t, early, 1) // booked before anybody listens
	for i, ln := range lns {
		p := early
		if i > 0 {
			p = replicaPool(t, 2)
		}
		all = append(all, start(t, ln, p, nil, list...))
	}
	for _, r := range all[1:] {
		r.hears(t, 1)
	}
	var open []*pool.Booking
	for i := range 30 {
		open = append(open, pick(t, all[i%3].pool, uint64(i)))
	}
	for i, r := range all {
		r.hears(t, 20+min(i, 1))
		soon(t, "each tells two others, and not itself", func() bool { return r.x.count()[telemetry.PeerConnected] == 2 && len(r.x.Status()) == 2 })
	}
	held := func(r *replica) (n int) {
		for _, e := range r.pool.Status().Endpoints {
			n += e.HeldBlocks
		}
		return n
	}
	if a, b := held(all[1]), held(all[2]); a != b || a == 0 {
		t.Errorf("%d blocks are held by one replica's belief and %d by another's", a, b)
	}
	done(before)
	for _, b := range open {
		done(b)
	}
	for _, r := range all {
		r.hears(t, 0)
		if st := r.pool.Status(); st.InFlight != 0 {
			t.Errorf("%d in flight", st.InFlight)
		}
	}
}

func TestPeerThatEndsAndOneThatRestarts(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	pick(t, a.pool, 1)
	pick(t, b.pool, 2)
	a.hears(t, 1)
	b.hears(t, 1)
	begun := time.Now()
	b.stop()
	a.hears(t, 0)
	if took := time.Since(begun); took > mourning {
		t.Errorf("a peer that said that it ends was mourned for %v", took)
	}
	soon(t, "the log says so", func() bool { return a.log.count("peer is not told of picks") == 1 })

	ln, err := net.Listen("tcp", b.at)
	if err != nil {
		t.Skip(err)
	}
	fresh := start(t, ln, replicaPool(t, 2), nil, a.at, b.at)
	fresh.hears(t, 1)
	pick(t, fresh.pool, 3)
	a.hears(t, 1)
	for i, e := range fresh.pool.Status().Endpoints {
		if was := a.pool.Status().Endpoints[i]; e.HeldBlocks != was.HeldBlocks {
			t.Errorf("%s: a fresh replica believes that it holds %d blocks, an old one %d", e.Name, e.HeldBlocks, was.HeldBlocks)
		}
	}
}

func TestPeerOfAnotherVersion(t *testing.T) {
	t.Parallel()
	a, b := pair(t, func(x *Exchange) { x.self.Major = 2 })
	pick(t, a.pool, 1)
	pick(t, b.pool, 2)
	soon(t, "both refuse", func() bool {
		return a.x.count()[telemetry.PeerIncompatible] == 1 && a.log.count("peer of another version is refused") == 1
	})
	if a.pool.Status().Peers+b.pool.Status().Peers != 0 {
		t.Error("requests were booked all the same")
	}
	if n := a.log.count("speaks version 2"); n > 2 {
		t.Errorf("said %d times", n)
	}
}

func TestPeerThatHashesInAnotherWay(t *testing.T) {
	t.Parallel()
	a, b := pair(t, func(x *Exchange) { x.self.Hashing++ })
	pick(t, a.pool, 1)
	b.hears(t, 1)
	for _, e := range b.pool.Status().Endpoints {
		if e.HeldBlocks != 0 {
			t.Errorf("%s is believed to hold prefixes whose hashes mean something else", e.Name)
		}
	}
	done(pick(t, a.pool, 2))
	b.hears(t, 1)
}

// rawStream talks to r as a peer that keeps no rules.
func rawStream(t *testing.T, r *replica) grpc.BidiStreamingClient[wire.Message, wire.Answer] {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := wire.NewExchangeClient(conn).Tell(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// ending reads what is left of a stream and returns how it ended.
func ending(stream grpc.BidiStreamingClient[wire.Message, wire.Answer]) codes.Code {
	for {
		if _, err := stream.Recv(); err != nil {
			return status.Code(err)
		}
	}
}

func hello() *wire.Hello { return &wire.Hello{Major: major, Instance: newInstance()} }

func TestPeerThatKeepsNoRules(t *testing.T) {
	t.Parallel()
	r := start(t, listen(t), replicaPool(t, 2), nil)
	for name, c := range map[string]struct {
		messages []*wire.Message
		want     codes.Code
	}{
		"no greeting":       {[]*wire.Message{{Batch: &wire.Batch{Number: 1}}}, codes.InvalidArgument},
		"no name":           {[]*wire.Message{{Hello: &wire.Hello{Major: major}}}, codes.InvalidArgument},
		"too large":         {[]*wire.Message{{Hello: hello()}, {Batch: &wire.Batch{Pools: []*wire.Pool{{Ended: make([]uint64, 2*maxMessage)}}}}}, codes.ResourceExhausted},
		"unknown chain":     {[]*wire.Message{{Hello: hello()}, {Batch: &wire.Batch{Pools: []*wire.Pool{{Held: []*wire.Held{{Chain: &wire.Chain{Known: 9}}}}}}}}, codes.InvalidArgument},
		"outputs of nobody": {[]*wire.Message{{Hello: hello()}, {Batch: &wire.Batch{Pools: []*wire.Pool{{Name: "chat", Output: []uint32{9}}}}}}, codes.InvalidArgument},
		"a number twice": {[]*wire.Message{{Hello: hello()}, {Batch: &wire.Batch{Pools: []*wire.Pool{{Name: "chat", Endpoints: []*wire.Endpoint{{Number: 1, Url: address(0)}}},
			{Name: "chat", Endpoints: []*wire.Endpoint{{Number: 1, Url: address(1)}}}}}}}, codes.InvalidArgument},
		"itself": {[]*wire.Message{{Hello: r.x.self}}, codes.FailedPrecondition},
	} {
		stream := rawStream(t, r)
		for _, m := range c.messages {
			_ = stream.Send(m)
		}
		if got := ending(stream); got != c.want {
			t.Errorf("%s: ended with %v, want %v", name, got, c.want)
		}
	}
	many := make([]*wire.Pool, maxPools+1)
	for i := range many {
		many[i] = &wire.Pool{Name: fmt.Sprint("pool", i)}
	}
	stream := rawStream(t, r)
	_ = stream.Send(&wire.Message{Hello: hello()})
	_ = stream.Send(&wire.Message{Batch: &wire.Batch{Pools: many}})
	if got := ending(stream); got != codes.InvalidArgument {
		t.Errorf("%d pools: ended with %v", len(many), got)
	}
}

func TestPeersAreNotWithoutNumber(t *testing.T) {
	r := start(t, listen(t), replicaPool(t, 1), nil)
	for i := range maxStreams + 1 {
		stream := rawStream(t, r)
		_ = stream.Send(&wire.Message{Hello: hello()})
		_, err := stream.Recv() // its greeting
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&wire.Message{Batch: &wire.Batch{Number: 1}})
		_, err = stream.Recv()
		if refused := status.Code(err) == codes.ResourceExhausted; refused != (i == maxStreams) {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
}

// TestPeerThatFallsSilent: a peer that is stopped, or whose machine is gone, is forgotten.
func TestPeerThatFallsSilent(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 8 s")
	}
	r := start(t, listen(t), replicaPool(t, 2), nil)
	stream := rawStream(t, r)
	_ = stream.Send(&wire.Message{Hello: hello()})
	w := newWriter(func(parts []*wire.Pool) error {
		return stream.Send(&wire.Message{Batch: &wire.Batch{Number: 1, Pools: parts}})
	})
	if err := w.events("chat", []pool.Event{{Kind: pool.Booked, ID: 1, Endpoint: address(0), Prompt: 100, Uncached: 100}}); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	r.hears(t, 1)
	if got := ending(stream); got != codes.DeadlineExceeded {
		t.Errorf("ended with %v", got)
	}
	r.hears(t, 0)
}

// TestPeerThatTakesNothing: a peer that accepts and reads nothing costs a bounded queue, and gets a full state once it reads again.
func TestPeerThatTakesNothing(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 6 s")
	}
	deaf := listen(t)
	defer deaf.Close()
	r := start(t, listen(t), replicaPool(t, 2), nil, deaf.Addr().String())
	soon(t, "it is given up", func() bool { return r.log.count("confirmed nothing") > 0 })
	if n := r.x.count()[telemetry.PeerConnecting]; n != 1 {
		t.Errorf("%d peers are connecting", n)
	}
}

// TestPoolsComeAndGo: a reload that replaces a pool leaves nothing of the peers in the old one, and peers reach the new one.
func TestPoolsComeAndGo(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	first := pick(t, a.pool, 1)
	b.hears(t, 1)
	old := b.pool
	b.pool = replicaPool(t, 2)
	b.x.SetPools([]*pool.Pool{b.pool})
	if n := old.Status().Peers; n != 0 {
		t.Errorf("%d requests of peers are left in a pool that is no more", n)
	}
	second := pick(t, a.pool, 2)
	soon(t, "the new pool hears of it", func() bool { return b.pool.Status().Peers > 0 }) // and of the first one, if that was still on its way
	done(first)
	done(second)
	b.hears(t, 0)
}

// TestPoolThatIsNoMore: what a replica had in flight in a pool that it has no more ends at its peers, and a new pool of that name is not
// taken for the old one, whose requests had the same numbers.
func TestPoolThatIsNoMore(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	old := pick(t, a.pool, 1)
	b.hears(t, 1)
	a.x.SetPools(nil)
	b.hears(t, 0)
	done(old) // nobody is told

	a.pool = replicaPool(t, 2)
	a.x.SetPools([]*pool.Pool{a.pool})
	open := pick(t, a.pool, 2)
	b.hears(t, 1)
	a.pool = replicaPool(t, 2)
	a.x.SetPools([]*pool.Pool{a.pool})
	b.hears(t, 0)
	done(open)
	again := pick(t, a.pool, 3)
	b.hears(t, 1)
	done(again)
	b.hears(t, 0)
	if n := a.log.count("peer is not told of picks"); n > 1 {
		t.Errorf("a stream broke %d times for that", n)
	}
}

// TestWhatWasPassedOverIsToldAgain: a replica that starts hears a full state before its discovery shows the endpoints, or before it has
// the pool. As soon as it knows them it knows what they hold.
func TestWhatWasPassedOverIsToldAgain(t *testing.T) {
	t.Parallel()
	la, lb := listen(t), listen(t)
	list := []string{la.Addr().String(), lb.Addr().String()}
	a := start(t, la, replicaPool(t, 2), nil, list...)
	done(pick(t, a.pool, 1))
	open := pick(t, a.pool, 2)
	b := start(t, lb, replicaPool(t, 0), nil, list...)
	soon(t, "both are connected", func() bool {
		return a.x.count()[telemetry.PeerConnected]+b.x.count()[telemetry.PeerConnected] == 2
	})
	time.Sleep(2 * gather)
	knows := func(p *pool.Pool, what string) {
		t.Helper()
		soon(t, what, func() bool {
			st, was := p.Status(), a.pool.Status()
			for i, e := range st.Endpoints {
				if e.HeldBlocks != was.Endpoints[i].HeldBlocks {
					return false
				}
			}
			return len(st.Endpoints) == 2 && st.Peers == was.InFlight
		})
	}
	b.pool.SetTargets([]discover.Target{{URL: address(0)}, {URL: address(1)}})
	knows(b.pool, "it knows of the endpoints that discovery shows later")

	b.x.SetPools(nil)
	done(pick(t, a.pool, 3))
	time.Sleep(2 * gather)
	later := replicaPool(t, 2)
	b.x.SetPools([]*pool.Pool{later})
	knows(later, "it knows of a pool that it has later")
	done(open)
	soon(t, "and of the end", func() bool { return later.Status().Peers == 0 })
	if n := a.log.count("peer is not told of picks"); n > 1 {
		t.Errorf("a stream broke %d times for that", n)
	}
}
