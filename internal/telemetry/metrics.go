package telemetry

import (
	"maps"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxHandles bounds the label sets of each kind; further ones fold into Other. A gateway with more
// models x pools than this has lost the use of per-model series anyway.
const maxHandles = 2048

// Build says which build is running.
type Build struct {
	Version  string // "" is shown as "dev"
	Revision string // source revision, "" when unknown
}

// Metrics holds the registry and everything that is counted. Create it with New. All methods may be called
// from any goroutine.
type Metrics struct {
	reg   *prometheus.Registry
	known atomic.Pointer[func(string) bool]

	requests, prompt, generated, predicted, actual, actualPrompt *prometheus.CounterVec
	picks, attempts, window, retries, wasted                     *prometheus.CounterVec
	lostRecords                                                  prometheus.Counter
	seconds, ttft, pickSeconds, estimate, waited                 *prometheus.HistogramVec

	byRequest cache[requestKey, *requestHandles]
	byPick    cache[pickKey, *pickHandles]
	byAttempt cache[attemptKey, prometheus.Counter]
	traffic   cache[string, *Traffic]
	pools     collector
}

type (
	requestKey struct{ model, pool string }
	pickKey    struct{ pool, reason string }
	attemptKey struct{ pool, endpoint, outcome string }
)

// requestHandles are the series of one model and pool, resolved once.
type requestHandles struct {
	outcomes                                           map[string]prometheus.Counter
	retries, wasted                                    map[string]prometheus.Counter // by reached, by reason
	other                                              prometheus.Counter
	seconds, ttft                                      prometheus.Observer
	prompt, generated, predicted, actual, actualPrompt prometheus.Counter
	window                                             *prometheus.CounterVec // by how
	estimate                                           prometheus.Observer
	traffic                                            *Traffic
}

type pickHandles struct {
	count   prometheus.Counter
	seconds prometheus.Observer
	traffic *Traffic
}

// New returns a Metrics with its own registry, the Go runtime's and the process's collectors in it.
func New(b Build) *Metrics {
	m := &Metrics{reg: prometheus.NewRegistry()}
	m.pools.init(m)
	counter := func(name string) *prometheus.CounterVec {
		d := definition(name)
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
		m.reg.MustRegister(v)
		return v
	}
	histogram := func(name string) *prometheus.HistogramVec {
		d := definition(name)
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.Buckets}, d.Labels)
		m.reg.MustRegister(v)
		return v
	}
	m.requests, m.prompt, m.generated = counter(nameRequests), counter(namePromptTokens), counter(nameGenerated)
	m.predicted, m.actual, m.actualPrompt = counter(namePredictedHit), counter(nameActualHit), counter(nameActualPrompt)
	m.picks, m.attempts, m.window = counter(namePicks), counter(nameAttempts), counter(nameWindow)
	m.retries, m.wasted = counter(nameRetries), counter(nameWasted)
	m.seconds, m.ttft, m.pickSeconds, m.estimate = histogram(nameRequestSeconds), histogram(nameTTFT), histogram(namePickSeconds), histogram(nameEstimate)
	m.waited = histogram(nameQueueSeconds)
	m.lostRecords = counter(nameLostRecords).WithLabelValues()
	m.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(b), &m.pools)
	return m
}

func buildInfo(b Build) prometheus.Collector {
	d := definition(nameBuildInfo)
	if b.Version == "" {
		b.Version = "dev"
	}
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
	v.WithLabelValues(b.Version, b.Revision, runtime.Version()).Set(1)
	return v
}

// definition finds a row of the table. A name that is not in the table is a programming error.
func definition(name string) Definition {
	for _, d := range Definitions() {
		if d.Name == name {
			return d
		}
	}
	panic("telemetry: no definition of " + name)
}

// KnownModel sets the function that says whether a model name is one that some pool serves. Names that are
// not fold into Other. Without it every name is taken, up to a bound. The function is called for a name and
// pool that was not seen before, from any goroutine.
func (m *Metrics) KnownModel(known func(model string) bool) { m.known.Store(&known) }

// CollectDraining sets the function that the gauge of draining requests is read from. Call it once, before anything is served.
func (m *Metrics) CollectDraining(requests func() int) {
	d := definition(nameDraining)
	m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, func() float64 { return float64(requests()) }))
}

// Done counts a request that ended: call it exactly once per request. It costs about a microsecond and
// allocates nothing (BenchmarkDone).
func (m *Metrics) Done(r *Record) {
	h := m.handles(r.Model, r.Pool)
	c, ok := h.outcomes[r.Outcome]
	if !ok {
		c = h.other
	}
	c.Inc()
	h.seconds.Observe(r.Duration.Seconds())
	if r.TTFT > 0 {
		h.ttft.Observe(r.TTFT.Seconds())
	}
	add(h.prompt, r.PromptTokens)
	add(h.generated, r.OutputTokens)
	add(h.predicted, r.PredictedHit)
	if r.CachedTokens >= 0 {
		add(h.actual, r.CachedTokens)
		add(h.actualPrompt, r.PromptTokens)
	}
	add(h.wasted[r.Outcome], r.OutputTokens)
	if r.Reached != "" {
		h.retries[r.Reached].Inc()
		if r.CachedTokens >= 0 && (r.Reached == ReachedEndpoint || r.Reached == ReachedTokens) {
			add(h.wasted[WastedPrefill], r.PromptTokens-r.CachedTokens)
		}
	}
	if r.Window != "" {
		h.window.WithLabelValues(r.Window).Inc()
	}
	if r.Estimate > 0 && r.PromptTokens > 0 {
		h.estimate.Observe(float64(r.Estimate) / float64(r.PromptTokens))
	}
	h.traffic.done(r)
}

// add skips what is not positive: a counter panics on a negative number. No counter counts nothing.
func add(c prometheus.Counter, n int) {
	if n > 0 && c != nil {
		c.Add(float64(n))
	}
}

// Pick counts a decision for an endpoint of a pool, by reason, and the time it took.
func (m *Metrics) Pick(pool, reason string, d time.Duration) {
	h, ok := m.byPick.get(pickKey{pool, reason})
	if !ok {
		h = m.byPick.put(pickKey{pool, reason}, pickKey{Other, Other}, func(k pickKey) *pickHandles {
			return &pickHandles{m.picks.WithLabelValues(k.pool, k.reason), m.pickSeconds.WithLabelValues(k.pool), m.trafficOf(k.pool)}
		})
	}
	h.count.Inc()
	h.seconds.Observe(d.Seconds())
	h.traffic.pick(reason, d)
}

// Waited records how long a request waited for an endpoint of a pool.
func (m *Metrics) Waited(pool string, d time.Duration) {
	m.waited.WithLabelValues(strings.ToValidUTF8(pool, "?")).Observe(d.Seconds())
}

// Attempt counts an attempt to serve a request at an endpoint; outcome is one of Outcomes.
func (m *Metrics) Attempt(pool, endpoint, outcome string) {
	k := attemptKey{pool, endpoint, outcome}
	c, ok := m.byAttempt.get(k)
	if !ok {
		c = m.byAttempt.put(k, attemptKey{pool, Other, outcome}, func(k attemptKey) prometheus.Counter {
			return m.attempts.WithLabelValues(strings.ToValidUTF8(k.pool, "?"), strings.ToValidUTF8(k.endpoint, "?"), k.outcome)
		})
	}
	c.Inc()
}

// Handler serves the registry in the Prometheus text format (OpenMetrics and compression by negotiation).
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{Registry: m.reg, MaxRequestsInFlight: 8})
}

// Gatherer gives the registry to tests and to those who render metrics themselves.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.reg }

func (m *Metrics) handles(model, pool string) *requestHandles {
	if h, ok := m.byRequest.get(requestKey{model, pool}); ok {
		return h
	}
	// A name that is unknown now may be known later (an adapter was loaded): do not cache under it.
	if known := m.known.Load(); known != nil && model != "" && model != Other && !(*known)(model) {
		return m.handles(Other, pool)
	}
	return m.byRequest.put(requestKey{model, pool}, requestKey{Other, Other}, m.newHandles)
}

func (m *Metrics) newHandles(k requestKey) *requestHandles {
	k.model, k.pool = strings.ToValidUTF8(k.model, "?"), strings.ToValidUTF8(k.pool, "?")
	h := &requestHandles{
		other:     m.requests.WithLabelValues(k.model, k.pool, Other),
		seconds:   m.seconds.WithLabelValues(k.model, k.pool),
		ttft:      m.ttft.WithLabelValues(k.model, k.pool),
		prompt:    m.prompt.WithLabelValues(k.model, k.pool),
		generated: m.generated.WithLabelValues(k.model, k.pool),
		predicted: m.predicted.WithLabelValues(k.model, k.pool),
		actual:    m.actual.WithLabelValues(k.model, k.pool), actualPrompt: m.actualPrompt.WithLabelValues(k.model, k.pool),
		window:   m.window.MustCurryWith(prometheus.Labels{"model": k.model, "pool": k.pool}),
		estimate: m.estimate.WithLabelValues(k.pool),
		traffic:  m.trafficOf(k.pool),
	}
	series := func(v *prometheus.CounterVec, values []string) map[string]prometheus.Counter {
		out := make(map[string]prometheus.Counter, len(values))
		for _, value := range values {
			out[value] = v.WithLabelValues(k.model, k.pool, value)
		}
		return out
	}
	h.outcomes, h.retries, h.wasted = series(m.requests, Outcomes()), series(m.retries, Reaches()), series(m.wasted, Wastes())
	return h
}

// cache maps a label set to resolved handles. Reading takes no lock and allocates nothing: the map is
// replaced, never changed. The zero value is ready.
type cache[K comparable, V any] struct {
	mu sync.Mutex
	m  atomic.Pointer[map[K]V]
}

func (c *cache[K, V]) get(k K) (V, bool) {
	m := c.m.Load()
	if m == nil {
		var zero V
		return zero, false
	}
	v, ok := (*m)[k]
	return v, ok
}

// put returns the value of k and makes it when it is new; beyond the bound, the value of fold.
func (c *cache[K, V]) put(k, fold K, make func(K) V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.get(k); ok {
		return v
	}
	old := c.all()
	if len(old) >= maxHandles {
		k = fold
		if v, ok := old[k]; ok {
			return v
		}
	}
	next := maps.Clone(old)
	if next == nil {
		next = map[K]V{}
	}
	next[k] = make(k)
	c.m.Store(&next)
	return next[k]
}

// remove forgets the keys that drop names.
func (c *cache[K, V]) remove(drop func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.all())
	maps.DeleteFunc(next, func(k K, _ V) bool { return drop(k) })
	c.m.Store(&next)
}

// all returns the current map; it must not be changed.
func (c *cache[K, V]) all() map[K]V {
	if m := c.m.Load(); m != nil {
		return *m
	}
	return nil
}
