package extproc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"pointsman.dev/pointsman/internal/body"
	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Config is what New needs. Directory is required; every other zero value means the default that is named.
type Config struct {
	Directory *pool.Directory
	Metrics   *telemetry.Metrics // nil: nothing is counted
	Access    *telemetry.Access  // nil: no access records
	Log       *slog.Logger       // nil: silence
	Memory    *flight.Memory     // shared with the gateway's other data planes; nil: its own

	Ready func() bool // whether an endpoint is known to be usable; nil: always
	TLS   *tls.Config // nil: cleartext HTTP/2

	MaxBody    int64  // bytes of a request body; 0 means 64 MiB
	BodyMemory int64  // bytes of request bodies that may wait in memory; 0 means 8 MiB. What is beyond goes to unlinked files
	TempDir    string // for those files; "" means the system's

	DebugHeaders bool // show the endpoint and the reason of the pick to clients
	OtherPaths   bool // requests that are for no API of a model server are picked for, not refused
	Conformance  bool // obey the request header of the conformance suite, and say which endpoint served
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Memory == nil {
		c.Memory = new(flight.Memory)
	}
	if c.Ready == nil {
		c.Ready = func() bool { return true }
	}
	if c.MaxBody <= 0 {
		c.MaxBody = 64 << 20
	}
	if c.BodyMemory <= 0 {
		c.BodyMemory = 8 << 20
	}
	return c
}

// Server is the external processor. Create it with New; it may be used by any number of goroutines.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	grpc       *grpc.Server
	health     *health
	endWatches context.CancelFunc
	now        atomic.Pointer[settings]
	bodies     *body.Storage

	scanners sync.Pool // *llmapi.Scanner
	taps     sync.Pool // *llmapi.Stream
	chunks   sync.Pool // *[chunkSize]byte

	mu       sync.Mutex
	streams  map[*stream]struct{} // that have begun and not ended
	cutting  atomic.Bool
	waits    context.Context // of those that have no endpoint yet: ends when the drain does
	endWaits context.CancelFunc
	misled   sync.Once // said that Envoy does not use the picks
	unknown  sync.Once // said that it does not know some
}

// settings is one state of the configuration. A stream ends under the one that it began with.
type settings struct {
	Config
	desk flight.Desk
}

// Envoy opens one stream per request over a few connections.
const (
	streamWindow = 256 << 10
	connWindow   = 8 << 20
	// messageRoom is what a message may have beside a body: headers, attributes, metadata.
	messageRoom = 1 << 20
)

// New returns a Server that serves nothing yet.
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{streams: map[*stream]struct{}{}}
	s.waits, s.endWaits = context.WithCancel(context.Background())
	s.scanners.New = func() any { return new(llmapi.Scanner) }
	s.taps.New = func() any { return new(llmapi.Stream) }
	s.chunks.New = func() any { return new([chunkSize]byte) }
	var once sync.Once
	s.bodies = body.New(cfg.BodyMemory, cfg.TempDir, func(err error) {
		once.Do(func() {
			cfg.Log.Warn("large request bodies stay in memory: no temporary file can be made", "error", err)
		})
	})
	s.Configure(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	s.endWatches = cancel
	s.health = &health{ready: func() bool { return s.now.Load().Ready() }, over: ctx}
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(cfg.MaxBody) + messageRoom), // in BUFFERED mode a body is one message
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.WaitForHandlers(true),
		// An Envoy that is gone without a word must not keep its bookings; one that pings often is no enemy.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.grpc = grpc.NewServer(opts...)
	extprocv3.RegisterExternalProcessorServer(s.grpc, s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	return s
}

// Configure puts a configuration in force for the streams that begin from now on. TLS, BodyMemory, TempDir and the room that MaxBody
// makes for messages stay as they were; so does Memory, if the new one is nil.
func (s *Server) Configure(cfg Config) {
	if old := s.now.Load(); old != nil && cfg.Memory == nil {
		cfg.Memory = old.Memory
	}
	n := &settings{Config: cfg.withDefaults()}
	n.desk = flight.Desk{Directory: n.Directory, Metrics: n.Metrics, Access: n.Access, Memory: n.Memory}
	s.now.Store(n)
}

// Serve accepts on ln until Close or Finish. It closes ln, and returns nil after those.
func (s *Server) Serve(ln net.Listener) error { return s.grpc.Serve(ln) }

// Leave makes the health service say that the processor goes, from this moment on. Streams are still accepted.
func (s *Server) Leave() { s.health.leave() }

// Finish accepts no further streams, and returns when the last one has ended. Close ends it early.
func (s *Server) Finish() {
	s.endWatches()
	s.grpc.GracefulStop()
}

// Close ends everything at once. What Envoy does with the requests is its failure_mode_allow's to say.
func (s *Server) Close() {
	s.endWatches()
	s.grpc.Stop()
}

// InFlight returns how many requests have begun and not ended, and for how long the oldest has been going on.
func (s *Server) InFlight() (n int, oldest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.streams {
		oldest = max(oldest, x.Now())
	}
	return len(s.streams), oldest
}
