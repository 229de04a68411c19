package app

import (
	"context"
	"crypto/sha256"
	"net"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/discover/kube"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/scrape"
)

// member is one pool and what feeds it.
type member struct {
	pool   *pool.Pool
	source config.Pool                   // what the discoverer was made of
	from   *kube.Cluster                 // that it asks, if it asks one
	broken atomic.Pointer[func() string] // of the discoverer; nil: it cannot break
	ctx    context.Context
	stop   context.CancelFunc // ends everything that feeds the pool
	resrc  context.CancelFunc // ends the discoverer alone
}

// apply makes the gateway run cfg: pools that stay keep their state, new ones start, removed ones take no new requests and
// finish what they have. Listener addresses are those of the start.
func (g *Gateway) apply(cfg *config.Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.pools
	g.pools = nil
	if to := clusterAccess(cfg); g.cluster == nil || to != g.reach {
		g.cluster, g.reach = kube.NewCluster(to.Access, g.log), to
	}
	for _, c := range cfg.Pools {
		if i := slices.IndexFunc(old, func(m *member) bool { return m.pool.Name() == c.Name }); i >= 0 {
			g.pools = append(g.pools, old[i])
			g.update(old[i], c)
			old = slices.Delete(old, i, i+1)
			continue
		}
		g.pools = append(g.pools, g.newMember(c))
	}
	pools := make([]*pool.Pool, len(g.pools))
	for i, m := range g.pools {
		pools[i] = m.pool
	}
	if g.exchange != nil {
		g.exchange.SetPools(pools)
	}
	g.dir.Set(pools, aliases(cfg))
	g.cfg = cfg
	for _, m := range old {
		m.resrc()
		m.pool.Retire()
		g.done.Go(m.retire)
	}
}

// retire ends what feeds a removed pool once its last request is over: until then its endpoints are still watched.
func (m *member) retire() {
	defer m.stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for m.pool.Status().InFlight > 0 {
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
	}
}

// newMember starts a pool with its discoverer and its poller.
func (g *Gateway) newMember(c config.Pool) *member {
	start := time.Now()
	m := &member{source: c}
	m.pool = pool.New(poolConfig(c), g.log, func() time.Duration { return time.Since(start) })
	m.ctx, m.stop = context.WithCancel(g.ctx)
	fleet := scrape.New(scrape.Config{}, m.pool)
	g.done.Go(func() { _ = m.pool.Run(m.ctx) }) // both return the context's end
	g.done.Go(func() { _ = fleet.Run(m.ctx) })
	g.discover(m)
	return m
}

// update gives a pool its new configuration, and a new discoverer if its source changed.
func (g *Gateway) update(m *member, c config.Pool) {
	same := slices.Equal(m.source.Endpoints, c.Endpoints) && m.source.File == c.File && m.source.DNS == c.DNS &&
		reflect.DeepEqual(m.source.Kubernetes, c.Kubernetes) && (c.Kubernetes == nil || m.from == g.cluster)
	m.source = c
	switch {
	case same:
		m.pool.SetConfig(poolConfig(c))
	case c.File == "" && c.DNS == "" && c.Kubernetes == nil:
		m.resrc()
		m.broken.Store(nil)
		m.pool.Replace(poolConfig(c), discover.Targets(c.Endpoints))
	default:
		m.pool.SetConfig(poolConfig(c))
		m.resrc()
		g.discover(m)
	}
}

// discover runs the pool's discoverer and hands every set to the pool. A static list is handed over before anything
// else, so that the first request finds it.
func (g *Gateway) discover(m *member) {
	var ctx context.Context
	ctx, m.resrc = context.WithCancel(m.ctx)
	var d discover.Discoverer
	switch c := m.source; {
	case c.File != "":
		d = discover.NewFile(c.File, config.ParseEndpoints, g.log)
	case c.DNS != "":
		d = discover.NewDNS(c.DNS, net.DefaultResolver, g.log)
	case c.Kubernetes != nil:
		m.from = g.cluster
		d = g.cluster.Discover(kube.Source(*c.Kubernetes))
	default:
		m.broken.Store(nil)
		m.pool.SetTargets(discover.Targets(c.Endpoints))
		return
	}
	m.broken.Store(new(d.Broken))
	up, over, cancel := make(chan []discover.Target), make(chan struct{}), m.resrc
	m.resrc = func() { // a set that was on its way must not come after those of the next source
		cancel()
		<-over
	}
	g.done.Go(func() { d.Run(ctx, up) })
	g.done.Go(func() {
		defer close(over)
		for {
			select {
			case set := <-up:
				m.pool.SetTargets(set)
			case <-ctx.Done():
				return
			}
		}
	})
}

// reach is a way to an API server, and what stands in its file: a kubeconfig that was written anew is another way.
type reach struct {
	kube.Access
	content [sha256.Size]byte
}

// clusterAccess is how pools reach the API server.
func clusterAccess(cfg *config.Config) reach {
	if cfg.Kubernetes == nil {
		return reach{}
	}
	r := reach{Access: kube.Access(*cfg.Kubernetes)}
	if data, err := os.ReadFile(r.Kubeconfig); err == nil { // who uses it says what is wrong with it
		r.content = sha256.Sum256(data)
	}
	return r
}

// poolConfig is the part of the configuration that a pool reads.
func poolConfig(c config.Pool) pool.Config {
	return pool.Config{
		Name:     c.Name,
		Policy:   map[config.Policy]pool.Policy{config.PolicyAuto: pool.Auto, config.PolicyPrefix: pool.Prefix, config.PolicyLeastRequest: pool.LeastRequest}[c.Policy],
		Gates:    map[config.Gates]route.Gates{config.GatesDefault: route.GatesDefault, config.GatesStrict: route.GatesStrict, config.GatesOff: route.GatesOff}[c.Gates],
		WhenFull: map[config.WhenFull]route.WhenFull{config.WhenFullSeconds: route.Seconds, config.WhenFullRequests: route.Requests}[c.WhenFull],
		Full:     pool.Full(c.Full),
		APIKey:   c.APIKey.Reveal(),
		Overflow: c.Overflow,
		Queue:    pool.Queue(c.Queue),
		Warm:     warm(c.Warm),
		Hold:     c.Hold,
	}
}

func warm(list []config.WarmRequest) (all []pool.WarmRequest) {
	for _, w := range list {
		all = append(all, pool.WarmRequest(w))
	}
	return all
}

// aliases are the model entries of the configuration as the directory takes them.
func aliases(cfg *config.Config) []pool.Alias {
	list := make([]pool.Alias, 0, len(cfg.Models))
	for _, m := range cfg.Models {
		a := pool.Alias{Name: m.Name, Serves: m.Serves}
		for _, p := range m.Pools {
			a.Pools = append(a.Pools, pool.AliasPool{Pool: p.Pool, Serves: p.Serves})
		}
		list = append(list, a)
	}
	return list
}
