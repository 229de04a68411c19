package pool

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// MaxSlots bounds the endpoints of one pool, those that are leaving included.
const MaxSlots = 4096

// Pool is the state of one pool. Its methods are safe for concurrent use.
type Pool struct {
	log *slog.Logger
	now func() time.Duration // monotonic, since an arbitrary start

	mu      sync.Mutex
	cfg     Config
	version uint64 // counts changes of the set of addresses to watch

	snap    route.Snapshot // Endpoints[i] belongs to slots[i]
	slots   []*slot
	byURL   map[string]int // endpoints that take new requests
	free    []int
	leavers []int // slots of removed endpoints that still have requests
	books   *ledger.Ledger
	index   *prefix.Index
	avg     route.Averages

	estimate     route.Estimator
	countsOutput atomic.Bool // see CountsOutput
	overflow     atomic.Bool // of the configuration
	refused      float64     // sum of the endpoints' shares of refusals

	raw     []int32  // scratch of a pick: bytes held per slot
	hits    []int32  // scratch of a pick: the same in tokens
	exclude []uint64 // scratch of a pick
	unused  []uint64 // slots that are free or leaving
	byModel map[string][]uint64
	models  []Model // merged, in the order of first sight

	lastModels []Model // the same when it was last not empty

	rnd     uint64
	due     time.Duration // when some slot changes by the passing of time alone
	queue   queue
	trace   trace
	journal journal
	peers   []*Peer
	count   counters
	events  []event // state changes, logged after the mutex is let go

	warnings  []string
	allStale  bool
	blind     blindness
	missed    missed
	onModels  []func()
	modelsNew bool
}

// epoch keeps every time of a pool well above zero, whose neighbourhood means "never" to the health machine.
const epoch = time.Hour

// counters are totals since the start.
type counters struct {
	picks                     [route.ReasonOnlyOne + 1]int64
	noEndpoint                int64
	predicted, actual, prompt int64 // tokens of the requests whose engine said what it found cached
}

// New returns a pool without endpoints. now is a monotonic clock since an arbitrary start; a nil log discards.
func New(cfg Config, log *slog.Logger, now func() time.Duration) *Pool {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if now == nil {
		start := time.Now()
		now = func() time.Duration { return time.Since(start) }
	}
	p := &Pool{
		log: log, now: func() time.Duration { return now() + epoch }, byURL: map[string]int{}, byModel: map[string][]uint64{},
		books: ledger.New(), index: prefix.NewIndex(), rnd: seed(cfg.Name), blind: blindness{since: -1, last: -1},
	}
	p.snap.Params = route.DefaultParams()
	p.cfg = cfg.withDefaults()
	p.applyConfig()
	return p
}

// seed differs between pools and is the same in every run: ties are broken by it, and a test can repeat them.
func seed(name string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// random is splitmix64. The mutex is held.
func (p *Pool) random() uint64 {
	p.rnd += 0x9e3779b97f4a7c15
	z := p.rnd
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Name returns the name of the pool.
func (p *Pool) Name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.Name
}

// APIKey returns the key that the endpoints want, or "".
func (p *Pool) APIKey() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.APIKey
}

// SetConfig replaces the configuration. The next pick uses it; the endpoints and what is known of them stay.
func (p *Pool) SetConfig(cfg Config) {
	p.mu.Lock()
	defer p.unlock()
	p.cfg = cfg.withDefaults()
	p.applyConfig()
	p.refresh(p.now())
}

func (p *Pool) applyConfig() {
	p.overflow.Store(p.cfg.Overflow)
	q := &p.snap.Params
	q.Gates, q.WhenFull = p.cfg.Gates, p.cfg.WhenFull
	q.FullWaiting, q.ProjectedKV, q.LongPrompt = p.cfg.Full.Waiting, p.cfg.Full.ProjectedKV, p.cfg.Full.LongPrompt
	if p.cfg.Coefficients != (route.Coefficients{}) {
		q.Coeff = p.cfg.Coefficients
	}
	p.choosePolicy()
}

// SetTargets replaces the set of endpoints. New ones take the very next request; those that are missing take no
// more and finish what they have. An address that comes back, or that another ID has now, starts clean, also while
// requests of its earlier life still run. Addresses that are no http URL, and those beyond MaxSlots, are left out and logged.
func (p *Pool) SetTargets(targets []discover.Target) {
	p.mu.Lock()
	defer p.unlock()
	p.setTargets(targets)
}

// Replace is SetConfig and SetTargets in one step: nobody who waits is picked for by the new configuration at an endpoint that is
// to go.
func (p *Pool) Replace(cfg Config, targets []discover.Target) {
	p.mu.Lock()
	defer p.unlock()
	p.cfg = cfg.withDefaults()
	p.applyConfig()
	p.setTargets(targets)
}

// setTargets is SetTargets. The mutex is held.
func (p *Pool) setTargets(targets []discover.Target) {
	now := p.now()
	wanted := make(map[string]bool, len(targets))
	for _, t := range targets {
		ep, err := parseEndpoint(t.URL)
		if err != nil {
			p.event(slog.LevelError, "endpoint address is unusable", "url", t.URL, "error", err.Error())
			continue
		}
		key := ep.URL.String()
		if wanted[key] {
			continue
		}
		wanted[key] = true
		i, have := p.byURL[key]
		if have && t.ID != "" && p.slots[i].id != "" && p.slots[i].id != t.ID {
			p.remove(key, i, now) // another one has its address
			have = false
		}
		if !have {
			p.add(key, ep, now)
		}
		p.describe(key, t)
	}
	for key, i := range p.byURL {
		if !wanted[key] {
			p.remove(key, i, now)
		}
	}
	p.placePeers(now)
	p.version++
	p.indexModels()
	p.refresh(now)
}

// Retire ends the pool: it has no endpoints any more, and nobody waits for one. What is in flight goes on.
func (p *Pool) Retire() {
	p.mu.Lock()
	defer p.unlock()
	p.cfg.Queue, p.cfg.Hold = Queue{}, 0
	p.setTargets(nil)
}

// describe keeps what the source of the endpoints says of one. The mutex is held.
func (p *Pool) describe(key string, t discover.Target) {
	i, have := p.byURL[key]
	if !have {
		return // there was no slot for it
	}
	s := p.slots[i]
	if t.ID != "" {
		s.id = t.ID
	}
	s.pageAt = t.MetricsPort
	if s.said != t.Settings {
		s.said = t.Settings
		p.choosePolicy()
	}
}

// add gives an endpoint a slot. The mutex is held.
func (p *Pool) add(key string, ep *Endpoint, now time.Duration) {
	i := len(p.slots)
	switch {
	case len(p.free) > 0:
		i = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
	case i == MaxSlots:
		p.event(slog.LevelError, "too many endpoints", "endpoint", ep.Name, "limit", MaxSlots)
		return
	default:
		p.slots = append(p.slots, nil)
		p.snap.Endpoints = append(p.snap.Endpoints, route.Endpoint{})
		p.raw, p.hits = append(p.raw, 0), append(p.hits, 0)
		for len(p.unused)*64 <= i {
			p.unused = append(p.unused, ^uint64(0))
			p.exclude = append(p.exclude, 0)
		}
	}
	p.slots[i] = newSlot(key, ep, health.New(now), &p.avg, p.trace.seq)
	p.chill(p.slots[i], now)
	p.unused[i>>6] &^= 1 << (i & 63)
	p.byURL[key] = i
	p.event(slog.LevelInfo, "endpoint added", "endpoint", ep.Name)
}

// remove stops new requests to an endpoint and frees its slot when nothing runs there. The mutex is held.
func (p *Pool) remove(key string, i int, now time.Duration) {
	s := p.slots[i]
	s.leaving = true
	s.machine.Draining(now)
	p.unused[i>>6] |= 1 << (i & 63)
	delete(p.byURL, key)
	p.index.Clear(i)
	p.leavers = append(p.leavers, i)
	p.event(slog.LevelInfo, "endpoint removed", "endpoint", s.ep.Name, "in_flight", s.live)
	p.release(i)
}

// release frees the slot of an endpoint that is leaving and has nothing in flight. The mutex is held.
func (p *Pool) release(i int) {
	s := p.slots[i]
	if !s.leaving || s.live > 0 || s.theirs > 0 {
		return
	}
	if err := p.books.Drop(i); err != nil {
		p.event(slog.LevelError, "slot is not empty", "endpoint", s.ep.Name, "error", err.Error())
		return
	}
	p.index.Clear(i)
	p.slots[i] = nil
	p.leavers = slices.DeleteFunc(p.leavers, func(k int) bool { return k == i })
	p.set(i, route.Endpoint{Admission: route.LastResort})
	p.free = append(p.free, i)
	p.version++
}

// parseEndpoint accepts scheme://host[:port] and a path prefix.
func parseEndpoint(raw string) (*Endpoint, error) {
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, &url.Error{Op: "reading", URL: raw, Err: errNotHTTP}
	}
	return &Endpoint{URL: u, Name: u.Host + u.Path, host: u.Hostname()}, nil
}

// Watched returns the URLs that are to be asked for reports and health: the endpoints, and those that left but
// still have requests, whose streams must be cut when the process behind them is gone. version changes when the
// set may have changed.
func (p *Pool) Watched() (urls []string, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(map[string]bool, len(p.slots))
	for _, s := range p.slots {
		if s != nil && !seen[s.key] {
			seen[s.key] = true
			urls = append(urls, s.key)
		}
	}
	return urls, p.version
}

// ReportURL returns where the metrics page of an endpoint is, scheme://host:port: at another port of its host when the source of
// the endpoints says so, at url itself otherwise.
func (p *Pool) ReportURL(url string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := url
	p.watched(url, func(_ int, s *slot) {
		if s.pageAt > 0 && !s.leaving {
			at = s.ep.URL.Scheme + "://" + net.JoinHostPort(s.ep.URL.Hostname(), strconv.Itoa(s.pageAt))
		}
	})
	return at
}

// WatchVersion returns the version of Watched without its cost.
func (p *Pool) WatchVersion() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// Run keeps what changes by the passing of time: reports that grow stale, ejections that end, streams of departed
// endpoints that are to be cut. It returns when ctx ends. A pool picks without it, but cuts nothing.
func (p *Pool) Run(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.mu.Lock()
			p.refresh(p.now())
			p.unlock()
		}
	}
}
