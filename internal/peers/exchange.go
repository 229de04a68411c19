package peers

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

const (
	gather    = 50 * time.Millisecond // how long picks are gathered
	heartbeat = time.Second           // silence after which a stream carries an empty batch
	patience  = 5 * time.Second       // silence after which the other end counts as lost, and how long a greeting may take
	mourning  = 3 * time.Second       // how long the requests of a peer count that broke off without a word
	sayEvery  = time.Minute           // between two lines of the log about one peer that does not answer,
	sayOther  = 5 * time.Second       // when the reason is another one
)

// Config is what an Exchange needs. Metrics and Log are required.
type Config struct {
	DNS  string   // host:port whose addresses are the replicas; "": List
	List []string // host:port of each replica

	// ServerTLS and ClientTLS are asked for at each connection; host is that of the address as it was configured. nil: cleartext.
	ServerTLS *tls.Config
	ClientTLS func(host string) (*tls.Config, error)

	Release string // for the peers' logs
	Metrics func(count func() map[string]int) *telemetry.Peers
	Log     *slog.Logger
}

// Exchange tells the picks of this replica to its peers, and books theirs. New makes one, Run runs it.
type Exchange struct {
	cfg     Config
	log     *slog.Logger
	metrics *telemetry.Peers
	self    *wire.Hello

	pools    atomic.Pointer[[]*pool.Pool]
	server   *grpc.Server
	sessions sessions

	mu    sync.Mutex
	links map[string]*link // by address
	done  sync.WaitGroup
}

// New returns an exchange that nothing is told yet.
func New(cfg Config) (*Exchange, error) {
	hash, err := hashing()
	if err != nil {
		return nil, err
	}
	x := &Exchange{cfg: cfg, log: cfg.Log, links: map[string]*link{},
		self: &wire.Hello{Major: major, Minor: minor, Instance: newInstance(), Release: cfg.Release, Hashing: hash}}
	x.pools.Store(&[]*pool.Pool{})
	x.metrics = cfg.Metrics(x.count)
	x.server = x.newServer()
	return x, nil
}

// SetPools replaces the pools whose picks are exchanged. They are shared from now on.
func (x *Exchange) SetPools(pools []*pool.Pool) {
	for _, p := range pools {
		p.Share()
	}
	pools = slices.Clone(pools)
	x.mu.Lock()
	x.pools.Store(&pools)
	for _, l := range x.links {
		l.behind.Store(true) // a full state ends what was in flight in pools that are no more
	}
	x.mu.Unlock()
	x.sessions.keep(pools)
}

// pool returns the pool of a name, nil if there is none.
func (x *Exchange) pool(name string) *pool.Pool {
	for _, p := range *x.pools.Load() {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// Run serves the peers on ln and tells them what happens, until ctx ends. It closes ln.
func (x *Exchange) Run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer x.done.Wait()
	defer cancel()
	failed := make(chan error, 1)
	x.done.Go(func() { failed <- x.server.Serve(limited(ln)) })
	x.done.Go(func() { x.follow(ctx) })
	tick := time.NewTicker(gather)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			x.tell() // the ends of what was cut last
			x.sessions.shut()
			x.server.Stop()
			return nil
		case err := <-failed:
			x.sessions.shut()
			return fmt.Errorf("serving the peers listener: %w", err)
		case <-tick.C:
			x.tell()
		}
	}
}

// follow keeps a link to every replica that discovery shows.
func (x *Exchange) follow(ctx context.Context) {
	var source discover.Discoverer = discover.Static(addresses(x.cfg.List))
	if x.cfg.DNS != "" {
		source = discover.NewDNS(x.cfg.DNS, nil, x.log.With("of", "peers"))
	}
	up := make(chan []discover.Target)
	x.done.Go(func() { source.Run(ctx, up) })
	for {
		select {
		case set := <-up:
			x.relink(ctx, set)
		case <-ctx.Done():
			return
		}
	}
}

// addresses makes targets of a list; the scheme says nothing.
func addresses(list []string) []discover.Target {
	urls := make([]string, len(list))
	for i, at := range list {
		urls[i] = scheme + at
	}
	return discover.Targets(urls)
}

const scheme = "http://"

// relink starts links to new addresses and ends those to addresses that are gone.
func (x *Exchange) relink(ctx context.Context, set []discover.Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	wanted := map[string]bool{}
	for _, t := range set {
		at := strings.TrimPrefix(t.URL, scheme)
		if wanted[at] = true; x.links[at] != nil || len(x.links) == maxLinks {
			continue
		}
		l := newLink(x, at)
		var own context.Context
		own, l.stop = context.WithCancel(ctx)
		x.links[at] = l
		x.done.Go(func() { l.run(own) })
	}
	for at, l := range x.links {
		if !wanted[at] {
			l.stop()
			delete(x.links, at)
		}
	}
}

// maxLinks bounds the replicas that are told.
const maxLinks = 64

// batch is what happened in all pools within one time of gathering. It is shared by the links and not changed.
type batch struct {
	parts  []part
	taken  time.Time
	oldest time.Time // of its events
}

type part struct {
	name   string
	events []pool.Event
}

// tell takes what happened from the pools and hands it to every link.
func (x *Exchange) tell() {
	x.mu.Lock() // from before the pools are read: what is told of one must not come after it was ended
	defer x.mu.Unlock()
	var b *batch
	lost := false
	now := time.Now()
	for _, p := range *x.pools.Load() {
		events, age, gap := p.Take()
		lost = lost || gap
		if len(events) == 0 {
			continue
		}
		if b == nil {
			b = &batch{oldest: now, taken: now}
		}
		if at := now.Add(-age); at.Before(b.oldest) {
			b.oldest = at
		}
		b.parts = append(b.parts, part{p.Name(), events})
	}
	for _, l := range x.links {
		l.offer(b, lost)
	}
}

// count returns how many peers are in each state.
func (x *Exchange) count() map[string]int {
	n := map[string]int{}
	for _, p := range x.Status() {
		n[p.State]++
	}
	return n
}

// Status returns the replicas that are told, by address, without this one.
func (x *Exchange) Status() []telemetry.Peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := []telemetry.Peer{}
	for _, l := range x.links {
		if p, other := l.status(); other {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b telemetry.Peer) int { return strings.Compare(a.Address, b.Address) })
	return list
}

// credentials returns what a connection to an address is made with.
func (x *Exchange) credentials(address string) (credentials.TransportCredentials, error) {
	if x.cfg.ClientTLS == nil {
		return insecure.NewCredentials(), nil
	}
	host, _, err := net.SplitHostPort(address)
	if x.cfg.DNS != "" {
		host, _, err = net.SplitHostPort(x.cfg.DNS)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the address of a peer: %w", err)
	}
	c, err := x.cfg.ClientTLS(host)
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(c), nil
}
