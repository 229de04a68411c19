package vllmsim

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// Server is one simulated vLLM server. It is safe for concurrent use.
type Server struct {
	cfg    Config
	lex    lexicon
	routes map[string]route
	born   time.Time
	page   *metricsPage

	mu        sync.Mutex
	eng       *engine.Engine
	calls     map[*call]struct{}
	inFlight  *engine.Step // scheduled, not finished
	stepStart time.Time    // when it was scheduled
	stepping  bool
	pausing   *sync.Cond // on mu: a step has ended or the engine has stopped
	slowdown  float64
	dead      bool // the engine process is gone
	halted    bool // the output reader has stopped: nothing moves any more
	zombie    bool
	draining  bool
	unhealthy bool // /health says 503
	asleep    int  // level, 0 = awake
	paused    bool
	armed     map[string]*armedFault
	frozen    []byte // the page that freeze-metrics repeats
	book      book
	stats     Stats
	bodies    bodyCounts
	stored    storedResponses
	life      lifecycle
}

// New checks cfg, fills its zero numbers with defaults and returns a server with an empty cache.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	profile, ok := engine.ProfileByName(cfg.Profile)
	if !ok {
		return nil, fmt.Errorf("checking profile %q: must be one of %v", cfg.Profile, engine.ProfileNames())
	}
	ec := engine.Config{Blocks: cfg.NumBlocks, BlockSize: cfg.BlockSize, MaxNumSeqs: cfg.MaxNumSeqs, MaxBatchedTokens: cfg.MaxBatchedTokens,
		MaxModelLen: cfg.MaxModelLen, PrefixCaching: cfg.PrefixCaching, MaxQueuedReqs: cfg.MaxQueuedReqs,
		MaxQueuedTokens: cfg.MaxQueuedTokens, Profile: profile, FirstChunkOnly: cfg.MetricsStyle == "vllm-0.8" || cfg.MetricsStyle == "vllm-0.12"}
	if err := ec.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, lex: pieces{}, born: time.Now(), eng: engine.New(ec), calls: map[*call]struct{}{}, slowdown: 1,
		armed: map[string]*armedFault{}, life: newLifecycle()}
	s.pausing = sync.NewCond(&s.mu)
	s.book = newBook(cfg)
	s.routes = s.routeTable()
	s.page = newMetricsPage(s)
	return s, nil
}

// old says that the server speaks as vLLM up to 0.10 does: flat errors, no /v1/messages, prompt plus max_tokens refused.
func (s *Server) old() bool { return s.cfg.MetricsStyle == "vllm-0.8" }

func (s *Server) version() string {
	switch s.cfg.MetricsStyle {
	case "vllm-0.8":
		return "0.10.0"
	case "vllm-0.12":
		return "0.12.0"
	}
	return "0.32.0"
}

// fingerprint is the system_fingerprint of responses; "" = null.
func (s *Server) fingerprint() string {
	if s.old() {
		return ""
	}
	return "vllm-" + s.version() + "-65421c06"
}

// Handler serves the API without a listener of its own: the keep-alive limit, refused connections and the closed port of
// a shutdown need Serve.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Stats counts what the server has done.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	es := s.eng.Stats()
	st.Running, st.Waiting, st.Preemptions = es.Running, es.Waiting, int64(es.Preempted)
	st.Generated, st.Cached = int64(es.Generated), int64(es.PromptHit)
	st.ByBody = s.bodies.snapshot()
	return st
}
