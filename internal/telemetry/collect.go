package telemetry

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/route"
)

// forgetAfter is how long the series of an endpoint stay after it was last seen in its pool: long enough for
// a Prometheus that scrapes every minute to see the last counts, short enough for pods that come and go.
const forgetAfter = 10 * time.Minute

// CollectPools sets the function that the gauges of pools and endpoints are read from, each time that the
// page is scraped. It must be safe to call from any goroutine.
func (m *Metrics) CollectPools(status func() []pool.Status) { m.pools.status.Store(&status) }

// collector turns pool.Status into gauges. It holds no value of its own, so a page never shows an old one.
type collector struct {
	m      *Metrics
	status atomic.Pointer[func() []pool.Status]
	descs  map[string]*prometheus.Desc
	now    func() time.Time

	mu   sync.Mutex
	seen map[[2]string]time.Time // pool, endpoint -> when it was last in a status
}

func (c *collector) init(m *Metrics) {
	c.m, c.now = m, time.Now
	c.seen, c.descs = map[[2]string]time.Time{}, map[string]*prometheus.Desc{}
	for _, d := range endpointDefinitions() {
		if d.Name != nameBuildInfo && d.Name != nameDraining {
			c.descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
		}
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	f := c.status.Load()
	if f == nil {
		return
	}
	status := (*f)()
	named := make(map[string]bool, len(status))
	for i := range status {
		if name := strings.ToValidUTF8(status[i].Name, "?"); !named[name] {
			named[name] = true
			c.pool(emitter{c, ch, name}, &status[i])
		}
	}
	c.sweep(status)
}

// emitter sends gauges of one pool.
type emitter struct {
	c    *collector
	ch   chan<- prometheus.Metric
	pool string
}

// gauge sends a value unless it is NaN, which is how unknown looks by now.
func (e emitter) gauge(name string, value float64, labels ...string) {
	if !math.IsNaN(value) {
		e.ch <- prometheus.MustNewConstMetric(e.c.descs[name], prometheus.GaugeValue, value, append([]string{e.pool}, labels...)...)
	}
}

func (c *collector) pool(e emitter, s *pool.Status) {
	e.gauge(nameQueued, float64(s.Queue.Waiting))
	e.gauge(nameHeldRequests, float64(s.Queue.Held))
	for reason, n := range s.Queue.Shed {
		e.ch <- prometheus.MustNewConstMetric(c.descs[nameShed], prometheus.CounterValue, float64(n), e.pool, reason)
	}
	for _, name := range gates() {
		e.gauge(nameFullEndpoints, float64(s.Full[name]), name)
	}
	e.gauge(nameReportsStale, b2f(s.AllStale))
	e.gauge(nameSourceBroken, b2f(s.Source != ""))
	e.gauge(nameContradiction, b2f(contradicts(s)))
	for _, ep := range merge(s.Endpoints) {
		c.endpoint(e, ep, s.BytesPerToken)
	}
}

// contradicts says whether a configured policy does not fit what an endpoint says of its prefix caching.
func contradicts(s *pool.Status) bool {
	for _, ep := range s.Endpoints {
		if on := ep.PrefixCaching; on != nil && (s.Configured == "prefix" && !*on || s.Configured == "least_request" && *on) {
			return true
		}
	}
	return false
}

// merge makes endpoint names unique: an endpoint that was removed and added again while requests run is there
// twice. The one that is not leaving speaks for both; requests in flight add up.
func merge(list []pool.EndpointStatus) []*pool.EndpointStatus {
	out := make([]*pool.EndpointStatus, 0, len(list))
	index := make(map[string]int, len(list))
	for i := range list {
		ep := list[i]
		ep.Name = strings.ToValidUTF8(ep.Name, "?")
		j, twice := index[ep.Name]
		if !twice {
			index[ep.Name] = len(out)
			out = append(out, &ep)
			continue
		}
		sum := out[j].InFlight + ep.InFlight
		if out[j].Leaving && !ep.Leaving {
			out[j] = &ep
		}
		out[j].InFlight = sum
	}
	return out
}

func (c *collector) endpoint(e emitter, ep *pool.EndpointStatus, bytesPerToken float64) {
	e.gauge(nameInFlight, float64(ep.InFlight), ep.Name)
	e.gauge(namePeerInFlight, float64(ep.Peers), ep.Name)
	for _, state := range states() {
		e.gauge(nameState, b2f(ep.State == state), ep.Name, state)
	}
	e.gauge(nameReportAge, known(ep.ReportAge), ep.Name)
	e.gauge(nameRunning, count(ep.Running), ep.Name)
	e.gauge(nameWaiting, count(ep.Waiting), ep.Name)
	e.gauge(nameKV, known(ep.KVUsage), ep.Name)
	e.gauge(nameProjectedKV, known(ep.ProjectedKV), ep.Name)
	e.gauge(nameForeign, float64(ep.Foreign), ep.Name)
	e.gauge(nameHitRatio, known(ep.EngineHitRatio), ep.Name, "engine")
	e.gauge(nameHitRatio, known(ep.ComputedHitRatio), ep.Name, "computed")
	if bytesPerToken > 0 {
		e.gauge(nameHeld, math.Round(float64(ep.HeldBytes)/bytesPerToken), ep.Name)
	}
}

// sweep forgets the attempts of endpoints that left long ago.
func (c *collector) sweep(status []pool.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, s := range status {
		for _, ep := range s.Endpoints {
			c.seen[[2]string{s.Name, ep.Name}] = now
		}
	}
	var gone []attemptKey
	for k := range c.m.byAttempt.all() {
		id := [2]string{k.pool, k.endpoint}
		if last, ok := c.seen[id]; !ok {
			c.seen[id] = now // never in a status, or already left: the time runs from here
		} else if now.Sub(last) > forgetAfter {
			gone = append(gone, k)
		}
	}
	drop := make(map[attemptKey]bool, len(gone))
	for _, k := range gone {
		drop[k] = true
		delete(c.seen, [2]string{k.pool, k.endpoint})
		c.m.attempts.DeleteLabelValues(strings.ToValidUTF8(k.pool, "?"), strings.ToValidUTF8(k.endpoint, "?"), k.outcome)
	}
	if len(drop) > 0 {
		c.m.byAttempt.remove(func(k attemptKey) bool { return drop[k] })
	}
	for id, last := range c.seen {
		if now.Sub(last) > 2*forgetAfter {
			delete(c.seen, id)
		}
	}
}

func known(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func count(v *int) float64 {
	if v == nil {
		return math.NaN()
	}
	return float64(*v)
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// states lists the values of the label state.
func states() []string {
	list := make([]string, health.NumStates)
	for i := range list {
		list[i] = health.State(i).String()
	}
	return list
}

// gates lists the values of the label gate.
func gates() []string {
	list := make([]string, route.NumGates)
	for i := range list {
		list[i] = route.GateName(i)
	}
	return list
}
