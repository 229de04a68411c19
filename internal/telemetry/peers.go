package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The exchange of picks between replicas of the gateway.

const (
	namePeers       = "pointsman_peers"
	namePeerLag     = "pointsman_peer_lag_seconds"
	namePeerBatches = "pointsman_peer_batches_total"
	namePeerBytes   = "pointsman_peer_bytes_total"
	namePeerStates  = "pointsman_peer_full_states_total"
	namePeerRefused = "pointsman_peer_refused_total"
)

// States of a peer, as the gauge names them.
const (
	PeerConnected    = "connected"    // it is told every pick
	PeerConnecting   = "connecting"   // it does not answer, or not yet
	PeerIncompatible = "incompatible" // it speaks another version
)

// PeerStates returns the states of a peer.
func PeerStates() []string { return []string{PeerConnected, PeerConnecting, PeerIncompatible} }

// Results of a batch of picks that was to be told to a peer.
const (
	PeerSent    = "sent"
	PeerDropped = "dropped" // the peer was too slow: a full state follows
)

// PeerResults returns the results of a batch.
func PeerResults() []string { return []string{PeerSent, PeerDropped} }

func peerDefinitions() []Definition {
	return []Definition{
		{Name: namePeers, Kind: Gauge, Labels: []string{"state"},
			Help: "Other replicas of the gateway that this one tells its picks, by state."},
		{Name: namePeerLag, Kind: Histogram, Buckets: lagBuckets(),
			Help: "Time from a pick here until a peer confirmed that it knows it: of the oldest pick of each batch, per peer."},
		{Name: namePeerBatches, Kind: Counter, Labels: []string{"result"},
			Help: "Batches of picks that were to be told to a peer, by what became of them; a dropped one is made good by a full state."},
		{Name: namePeerBytes, Kind: Counter, Labels: []string{"direction"},
			Help: "Bytes of the messages exchanged with peers, without the frames of HTTP/2 and TCP."},
		{Name: namePeerStates, Kind: Counter, Labels: []string{"direction"},
			Help: "Full states exchanged with peers: after a connection was made, and after a batch was dropped."},
		{Name: namePeerRefused, Kind: Counter,
			Help: "Streams and requests of peers that were not taken: beyond the bounds of what one may send, of another version, or unreadable."},
	}
}

// lagBuckets: picks are gathered for 50 ms; what is known within 250 ms is as good as known at once.
func lagBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .075, .1, .15, .25, .5, 1, 2.5, 5}
}

// Peer is another replica of the gateway as this one sees it.
type Peer struct {
	Address string  `json:"address"`
	State   string  `json:"state"`       // one of PeerStates
	Release string  `json:"release"`     // "" unknown
	Lag     float64 `json:"lag_seconds"` // from a pick here until the peer confirmed that it knows it, lately
	Error   string  `json:"error"`       // why it is not connected
}

// Peers counts the exchange of picks. Its methods may be called from any goroutine.
type Peers struct {
	lag           prometheus.Histogram
	sent, dropped prometheus.Counter
	bytes, fulls  [2]prometheus.Counter // sent, received
	refused       prometheus.Counter
}

// NewPeers adds the series of the exchange to m. count returns how many peers are in each state. Call it once, before anything is
// served.
func (m *Metrics) NewPeers(count func() map[string]int) *Peers {
	counter := func(name string) *prometheus.CounterVec {
		d := definition(name)
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
		m.reg.MustRegister(v)
		return v
	}
	d := definition(namePeerLag)
	p := &Peers{lag: prometheus.NewHistogram(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.Buckets})}
	batches, bytes, fulls := counter(namePeerBatches), counter(namePeerBytes), counter(namePeerStates)
	p.sent, p.dropped = batches.WithLabelValues(PeerSent), batches.WithLabelValues(PeerDropped)
	for i, direction := range []string{"sent", "received"} {
		p.bytes[i], p.fulls[i] = bytes.WithLabelValues(direction), fulls.WithLabelValues(direction)
	}
	p.refused = counter(namePeerRefused).WithLabelValues()
	m.reg.MustRegister(p.lag, &peerCollector{count: count, desc: prometheus.NewDesc(namePeers, definition(namePeers).Help, definition(namePeers).Labels, nil)})
	return p
}

// Lag records that a peer confirmed a batch whose oldest pick was made so long ago.
func (p *Peers) Lag(d time.Duration) { p.lag.Observe(d.Seconds()) }

// Sent and Dropped count batches.
func (p *Peers) Sent() { p.sent.Inc() }

// Dropped counts a batch that a peer was too slow for.
func (p *Peers) Dropped() { p.dropped.Inc() }

// Bytes counts the bytes of a message, received or sent.
func (p *Peers) Bytes(received bool, n int) { p.bytes[index(received)].Add(float64(n)) }

// FullState counts a full state, received or sent.
func (p *Peers) FullState(received bool) { p.fulls[index(received)].Inc() }

// Refused counts what was not taken from a peer.
func (p *Peers) Refused(n int) { p.refused.Add(float64(n)) }

func index(received bool) int {
	if received {
		return 1
	}
	return 0
}

// peerCollector is the gauge of the peers' states.
type peerCollector struct {
	count func() map[string]int
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *peerCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *peerCollector) Collect(ch chan<- prometheus.Metric) {
	n := c.count()
	for _, state := range PeerStates() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n[state]), state)
	}
}
