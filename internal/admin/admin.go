package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/dash"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Config says where the admin pages take their facts from. Functions must be safe to call from any goroutine
// and must not block; nil means that the page says so.
type Config struct {
	Metrics     http.Handler                          // /metrics
	Ready       func() (ready bool, reason string)    // /readyz; the reason is shown when not ready
	Status      func() []pool.Status                  // one per pool, in the order in which they are shown
	Traffic     func() map[string]telemetry.Totals    // totals by pool name
	Peers       func() []telemetry.Peer               // the other replicas; nil: none
	Descriptors func() (open, most int)               // file descriptors of this process; nil or 0: not known
	Explain     func(id string) (answer any, ok bool) // a pick as JSON; "" asks for the latest
	Dash        http.Handler                          // the dashboard's files, at /; nil means package dash's
	Version     string                                // shown on the dashboard
}

// maxStreams bounds the open event streams; a forgotten browser tab costs one.
const maxStreams = 64

// Server is the admin listener's handler. Create it with New; run Run beside it.
type Server struct {
	cfg     Config
	mux     *http.ServeMux
	start   time.Time
	streams atomic.Int64
	closing chan struct{} // closed when Run ends: open event streams end too
	once    sync.Once

	mu        sync.Mutex // guards what follows
	history   history
	sampled   []pool.Status // of the last sample, never changed; event streams share it
	sampledAt time.Time
}

// New returns the handler of the admin listener.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, mux: http.NewServeMux(), start: time.Now(), closing: make(chan struct{})}
	s.history.init()
	s.mux.HandleFunc("GET /healthz", s.healthz)
	s.mux.HandleFunc("GET /readyz", s.readyz)
	s.mux.HandleFunc("GET /api/status", s.status)
	s.mux.HandleFunc("GET /api/events", s.events)
	s.mux.HandleFunc("GET /api/explain", s.explain)
	if cfg.Metrics != nil {
		s.mux.Handle("GET /metrics", cfg.Metrics)
	}
	s.mux.HandleFunc("GET /debug/pprof/", bounded(pprof.Index))
	s.mux.HandleFunc("GET /debug/pprof/cmdline", cmdline)
	s.mux.HandleFunc("GET /debug/pprof/profile", bounded(pprof.Profile))
	s.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	s.mux.HandleFunc("GET /debug/pprof/trace", bounded(pprof.Trace))
	s.mux.Handle("GET /debug/{$}", http.RedirectHandler("pprof/", http.StatusSeeOther))
	if cfg.Dash == nil {
		cfg.Dash = dash.Handler()
	}
	s.mux.Handle("GET /", cfg.Dash)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.mux.ServeHTTP(w, r)
}

// bounded refuses profiles that take longer than a minute: a trace that somebody forgot fills his disk and slows every request.
func bounded(profile http.HandlerFunc) http.HandlerFunc {
	const most = 60
	return func(w http.ResponseWriter, r *http.Request) {
		if text := r.URL.Query().Get("seconds"); text != "" {
			if s, err := strconv.ParseFloat(text, 64); err != nil || !(s > 0 && s <= most) {
				http.Error(w, fmt.Sprintf("seconds must be above 0 and at most %d", most), http.StatusBadRequest)
				return
			}
		}
		profile(w, r)
	}
}

// cmdline is not served: a key could have been given as a flag.
func cmdline(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the command line is not shown", http.StatusForbidden)
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	text(w, http.StatusOK, "ok")
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if ready, reason := s.ready(); !ready {
		text(w, http.StatusServiceUnavailable, "not ready: "+reason)
		return
	}
	text(w, http.StatusOK, "ready")
}

func (s *Server) ready() (bool, string) {
	if s.cfg.Ready == nil {
		return true, ""
	}
	ready, reason := s.cfg.Ready()
	if !ready && reason == "" {
		reason = "no endpoint is known to be usable"
	}
	return ready, reason
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	status, _ := s.facts()
	writeJSON(w, http.StatusOK, s.view(status, true))
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimSpace(r.URL.Query().Get("id"))
	if s.cfg.Explain != nil {
		if answer, ok := s.cfg.Explain(id); ok {
			writeJSON(w, http.StatusOK, answer)
			return
		}
	}
	message := "no pick was made yet"
	if id != "" {
		message = "this request is not among the recent picks"
	}
	writeJSON(w, http.StatusNotFound, map[string]string{"error": message, "request_id": id})
}

func text(w http.ResponseWriter, status int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The reader went away: nobody is left to tell.
	_, _ = io.WriteString(w, line+"\n")
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
