package vllmsim

import (
	"context"
	"net"
	"net/http"
)

// Server is one simulated vLLM server. It is safe for concurrent use.
type Server struct {
	cfg Config
}

// New checks cfg, fills its zero numbers with defaults and returns a server with an empty cache.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg}, nil
}

// Handler serves the API without a listener of its own: the keep-alive limit, refused connections and the closed port of
// a shutdown need Serve.
func (s *Server) Handler() http.Handler { return http.NotFoundHandler() }

// Serve answers connections from ln, which it closes, until the server has shut down (Terminate, a killed engine: nil)
// or ctx ends (every connection is cut at once, as by SIGKILL: ctx's error).
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	<-ctx.Done()
	return ctx.Err()
}

// Terminate does what SIGTERM does to a vLLM server.
func (s *Server) Terminate() {}

// KillEngine does what a SIGKILL of the engine process does.
func (s *Server) KillEngine() {}

// SetFault arms f for the server, beside other kinds of faults and instead of an older one of the same kind.
func (s *Server) SetFault(f Fault) {}

// ClearFaults disarms every fault that has a way back.
func (s *Server) ClearFaults() {}

// Stats counts what the server has done.
func (s *Server) Stats() Stats { return Stats{} }
