package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// View is what /api/status answers and what each event of /api/events carries.
type View struct {
	Now     time.Time  `json:"now"`
	Version string     `json:"version"`
	Uptime  float64    `json:"uptime_seconds"`
	Ready   bool       `json:"ready"`
	Reason  string     `json:"reason,omitempty"` // why not ready
	Notices []Notice   `json:"notices"`
	Pools   []PoolView `json:"pools"`

	Peers []telemetry.Peer `json:"peers"` // the other replicas of the gateway; none where picks are not exchanged
}

// PoolView is a pool's status with its traffic of the last minute. The first event of a stream and
// /api/status carry the history; later events carry one point of it.
type PoolView struct {
	pool.Status
	Traffic   Figures               `json:"traffic"`
	Point     *Series               `json:"point,omitempty"`
	History   *Series               `json:"history,omitempty"`
	Sparkline map[string][]*float32 `json:"endpoint_history,omitempty"` // requests at each endpoint, by name
}

func (s *Server) facts() ([]pool.Status, map[string]telemetry.Totals) {
	var status []pool.Status
	var traffic map[string]telemetry.Totals
	if s.cfg.Status != nil {
		status = s.cfg.Status()
	}
	if s.cfg.Traffic != nil {
		traffic = s.cfg.Traffic()
	}
	return status, traffic
}

// lately is the status of the last sample, or of now when nobody samples. Taking a status costs a pool's lock, which
// picks need: viewers must not multiply it.
func (s *Server) lately() []pool.Status {
	s.mu.Lock()
	status, at := s.sampled, s.sampledAt
	s.mu.Unlock()
	if time.Since(at) > 2*step {
		status, _ = s.facts()
	}
	return status
}

// view describes this moment; with history, the minutes before it too.
func (s *Server) view(status []pool.Status, withHistory bool) *View {
	v := &View{Now: time.Now().UTC(), Version: s.cfg.Version, Uptime: time.Since(s.start).Seconds(), Pools: make([]PoolView, len(status))}
	v.Ready, v.Reason = s.ready()
	if v.Peers = []telemetry.Peer{}; s.cfg.Peers != nil {
		v.Peers = s.cfg.Peers()
	}
	own := s.ownNotices()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range status {
		p := &v.Pools[i]
		p.Status = status[i]
		ph := s.history.pools[p.Name]
		if ph == nil {
			ph = &poolHistory{}
		}
		p.Traffic = ph.figures()
		if withHistory {
			p.History = ph.series()
			p.Sparkline = s.history.sparklines(&p.Status)
		} else {
			p.Point = ph.point()
		}
	}
	v.Notices = append(own, notices(v.Pools, v.Peers, s.history.unplaced.figures().Requests)...)
	return v
}

func (h *history) sparklines(p *pool.Status) map[string][]*float32 {
	out := make(map[string][]*float32, len(p.Endpoints))
	for i := range p.Endpoints {
		name := p.Endpoints[i].Name
		if r := h.endpoints[[2]string{p.Name, name}]; r != nil {
			out[name] = r.list()
		}
	}
	return out
}

// point is the newest point of every series.
func (ph *poolHistory) point() *Series {
	return ph.each(func(r *ring) []*float32 { return []*float32{r.last()} })
}

// events streams a View every second as server-sent events, until the client goes away or the gateway ends.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		http.Error(w, fmt.Sprintf("there are %d event streams already", maxStreams), http.StatusServiceUnavailable)
		return
	}
	defer s.streams.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	rc := http.NewResponseController(w)
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for first := true; ; first = false {
		body, err := json.Marshal(s.view(s.lately(), first))
		if err != nil {
			return
		}
		// The listener's write timeout is for short answers; a stream gets a new one per event. Writers without
		// deadlines (tests) refuse, which is as good.
		_ = rc.SetWriteDeadline(time.Now().Add(10 * step))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", body); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		case <-s.closing:
			return
		}
	}
}
