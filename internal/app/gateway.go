package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/admin"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/discover/kube"
	"pointsman.dev/pointsman/internal/extproc"
	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/peers"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/proxy"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Gateway is a running gateway: two listeners, its pools, and the goroutines that feed them. Start makes one, Close
// ends it. Its methods may be called from any goroutine.
type Gateway struct {
	log     *slog.Logger
	dir     *pool.Directory
	metrics *telemetry.Metrics
	salt    *telemetry.Salt             // of prefix hashes in access records; one for the life of the process
	proxy   atomic.Pointer[proxy.Proxy] // replaced, never changed: a request ends under the settings it began with

	api, admin         *http.Server
	apiAddr, adminAddr string
	scheme             string // of the API

	ctx    context.Context // of everything that runs beside requests
	cancel context.CancelFunc
	done   sync.WaitGroup
	failed chan error // a listener that ended by itself

	exchange *peers.Exchange // nil: alone

	processor   *extproc.Server // nil: no Envoy asks
	extprocAddr string
	memory      flight.Memory // of both data planes

	draining atomic.Bool

	mu      sync.Mutex // guards what a reload changes
	cfg     *config.Config
	pools   []*member // in the order of the file
	cluster *kube.Cluster
	reach   reach // how cluster is reached
}

// Start opens the listeners of cfg and returns when both accept. What it starts ends with Close, or in haste when ctx
// ends.
func Start(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Gateway, error) {
	g := &Gateway{log: log, dir: pool.NewDirectory(), metrics: telemetry.New(telemetry.Build{Version: Version()}), failed: make(chan error, 4)}
	g.ctx, g.cancel = context.WithCancel(ctx)
	secure, err := secureAPI(cfg, log)
	if err != nil {
		return nil, err
	}
	if g.salt, err = telemetry.NewSalt(); err != nil {
		return nil, err
	}
	apiLn, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("opening the API listener %s: %w (the key is `listen`, the flag --listen)", cfg.Listen, err)
	}
	adminLn, err := net.Listen("tcp", cfg.Admin)
	if err != nil {
		_ = apiLn.Close()
		return nil, fmt.Errorf("opening the admin listener %s: %w (the key is `admin`, the flag --admin)", cfg.Admin, err)
	}
	if err := g.meetOthers(cfg); err != nil {
		_ = apiLn.Close()
		_ = adminLn.Close()
		return nil, err
	}
	g.apiAddr, g.adminAddr = dialable(apiLn.Addr()), dialable(adminLn.Addr())

	g.scheme = "http://"
	g.proxy.Store(proxy.New(proxyConfig(cfg, g)))
	g.metrics.KnownModel(g.dir.Known)
	g.metrics.CollectPools(g.Status)
	g.metrics.CollectDraining(g.drainingRequests)
	g.apply(cfg)

	operator := admin.New(g.adminConfig())
	g.done.Go(func() { operator.Run(g.ctx) })
	g.api, g.admin = server(http.HandlerFunc(g.serveAPI), log), server(operator, log)
	g.api.Protocols = protocols()
	if secure != nil {
		g.scheme, g.api.TLSConfig = "https://", secure
	}
	g.done.Go(func() { g.serve(g.api, apiLn, "API") })
	g.done.Go(func() { g.serve(g.admin, adminLn, "admin") })
	log.Info("listening", "api", apiLn.Addr().String(), "admin", adminLn.Addr().String(), "pools", len(cfg.Pools))
	return g, nil
}

// meetOthers opens the listeners of those that are no clients.
func (g *Gateway) meetOthers(cfg *config.Config) error {
	if err := g.meetPeers(cfg); err != nil {
		return err
	}
	return g.meetEnvoy(cfg)
}

func (g *Gateway) serveAPI(w http.ResponseWriter, r *http.Request) { g.proxy.Load().ServeHTTP(w, r) }

// proxyConfig is what the data plane reads of a configuration.
func proxyConfig(cfg *config.Config, g *Gateway) proxy.Config {
	c := dataPlane(cfg)
	c.Directory, c.Memory, c.Metrics, c.Access, c.Log = g.dir, &g.memory, g.metrics, g.access(cfg), g.log
	return c
}

// access is where finished requests are written to.
func (g *Gateway) access(cfg *config.Config) *telemetry.Access {
	a := telemetry.NewAccess(g.log).CountLost(g.metrics)
	if cfg.Log.PrefixHashes {
		return a.WithPrefixes(g.salt)
	}
	return a
}

// dataPlane is the part of it that comes from the file.
func dataPlane(cfg *config.Config) proxy.Config {
	c := proxy.Config{
		Limits:    proxy.Limits{Limit: cfg.Limit, FirstByte: cfg.FirstByte, Idle: cfg.Idle},
		KeepAlive: cfg.KeepAlive, MaxBody: cfg.MaxBody, DebugHeaders: cfg.DebugHeaders,
		CutStream: map[config.CutStream]proxy.CutStream{config.CutBoth: proxy.CutBoth, config.CutErrorEvent: proxy.CutErrorEvent, config.CutAbort: proxy.CutAbort}[cfg.CutStream],
	}
	if cfg.CORS != nil {
		c.CORS = &proxy.CORS{Origins: cfg.CORS.Origins}
	}
	for _, m := range cfg.Models {
		if l := (proxy.Limits{Limit: m.Limit, FirstByte: m.FirstByte, Idle: m.Idle}); l != c.Limits {
			if c.Models == nil {
				c.Models = map[string]proxy.Limits{}
			}
			c.Models[m.Name] = l
		}
	}
	return c
}

func (g *Gateway) adminConfig() admin.Config {
	return admin.Config{Peers: g.Peers, Metrics: g.metrics.Handler(), Ready: g.Ready, Status: g.Status, Explain: g.explain, Traffic: g.metrics.Traffic, Version: Version(), Descriptors: descriptors}
}

// server is an http.Server whose limits hold for clients that we do not know: a head takes at most 30 s and 64 KiB. Bodies
// and answers have no limit here, because the one limit is the proxy's.
func server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
}

// protocols are HTTP/1.1, HTTP/2 by ALPN where there is TLS, and cleartext HTTP/2 by prior knowledge where there is none.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

func (g *Gateway) serve(s *http.Server, ln net.Listener, name string) {
	serve := s.Serve
	if s.TLSConfig != nil {
		serve = func(ln net.Listener) error { return s.ServeTLS(ln, "", "") }
	}
	if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
		g.failed <- fmt.Errorf("serving the %s listener: %w", name, err)
	}
}

// dialable is an address that a client on this machine can use: a listener on every interface is reached by loopback.
func dialable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return a.String()
}

// API is the base URL of the API as seen from this machine, without /v1.
func (g *Gateway) API() string { return g.scheme + g.apiAddr }

// Admin is the base URL of the admin listener as seen from this machine.
func (g *Gateway) Admin() string { return "http://" + g.adminAddr }

// Failed delivers the error of a listener that ended by itself.
func (g *Gateway) Failed() <-chan error { return g.failed }

// Status is a snapshot of every pool, in the order of the configuration.
func (g *Gateway) Status() []pool.Status {
	members := g.members()
	list := make([]pool.Status, 0, len(members))
	for _, m := range members {
		s := m.pool.Status()
		if broken := m.broken.Load(); broken != nil {
			s.Source = (*broken)()
		}
		list = append(list, s)
	}
	return list
}

// Ready reports whether a request could be served: at least one endpoint of at least one pool is known usable, or a pool holds
// requests until it has one, which it can do only while it gets them. The text says why not.
func (g *Gateway) Ready() (bool, string) {
	if g.draining.Load() {
		return false, "draining: a signal asked the gateway to end"
	}
	return readiness(g.Status())
}

func readiness(pools []pool.Status) (bool, string) {
	var why []string
	for _, p := range pools {
		if p.Ready || p.Queue.Holds {
			return true, ""
		}
		if len(p.Endpoints) > 0 {
			why = append(why, fmt.Sprintf("no endpoint of pool %s is known usable: %s", p.Name, stateCounts(p.Endpoints)))
		}
	}
	if len(why) == 0 {
		return false, "no pool has an endpoint"
	}
	return false, strings.Join(why, "; ")
}

// stateCounts says how many endpoints are in which state: "3 gone, 1 asleep". Those that no state fits say what they are.
func stateCounts(list []pool.EndpointStatus) string {
	counts := map[string]int{}
	for i := range list {
		switch e := &list[i]; {
		case e.NoModelServer:
			counts["no model server"]++
		case !e.Heard && e.Cause != "":
			counts["never reached"]++
		default:
			counts[e.State]++
		}
	}
	states := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(states, func(a, b string) int { return counts[b] - counts[a] })
	for i, s := range states {
		states[i] = fmt.Sprintf("%d %s", counts[s], s)
	}
	return strings.Join(states, ", ")
}

// explanation is a request's last pick, with those before it, of whatever pool, the oldest first.
type explanation struct {
	pool.Explanation
	Earlier []pool.Explanation `json:"earlier,omitempty"`
	Others  int                `json:"others,omitempty"` // requests before it that had the same id, of those that are remembered
}

// explain finds the picks of a recent request, the latest of its id; "" is the latest of all.
func (g *Gateway) explain(id string) (any, bool) {
	members := g.members()
	if id == "" {
		last, found := pool.Explanation{}, false
		for _, m := range members {
			if e, ok := m.pool.Explain(""); ok && (!found || e.AgeSeconds < last.AgeSeconds) {
				last, found = e, true
			}
		}
		if id = last.ID; id == "" {
			return explanation{Explanation: last}, found
		}
	}
	var list []pool.Explanation
	for _, m := range members {
		list = append(list, m.pool.Explanations(id)...)
	}
	if len(list) == 0 {
		return nil, false
	}
	slices.SortStableFunc(list, func(a, b pool.Explanation) int { return cmp.Compare(b.AgeSeconds, a.AgeSeconds) })
	x := explanation{Explanation: list[len(list)-1]}
	others := map[uint64]bool{}
	for _, e := range list[:len(list)-1] {
		if e.Number == x.Number {
			x.Earlier = append(x.Earlier, e)
		} else {
			others[e.Number] = true
		}
	}
	x.Others = len(others)
	return x, true
}

func (g *Gateway) members() []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]*member(nil), g.pools...)
}

// Close ends the gateway at once: open requests are cut. It waits for every goroutine.
func (g *Gateway) Close() {
	_ = g.api.Close() // the listeners' errors are of no use to anybody any more
	_ = g.admin.Close()
	if g.processor != nil {
		g.processor.Close()
	}
	g.cancel()
	g.done.Wait()
	g.proxy.Load().CloseIdle()
}
