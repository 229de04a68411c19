package scrape

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"pointsman.dev/pointsman/internal/pool"
)

// Config says how endpoints are asked.
type Config struct {
	Interval time.Duration // between two readings of a metrics page, jittered by a fifth; 0 means 200 ms
	Timeout  time.Duration // of one reading; 0 means 3 s: a busy engine was seen to take 1.5 s
	Learn    time.Duration // between two readings of the model list; 0 means 10 s
	MaxBody  int64         // bytes of one page; 0 means 4 MiB

	// Transport makes the connections; nil means one of this package's own. It must not be that of the data plane.
	Transport http.RoundTripper
}

func (c Config) withDefaults() Config {
	if c.Interval <= 0 {
		c.Interval = 200 * time.Millisecond
	}
	if c.Timeout <= 0 {
		c.Timeout = 3 * time.Second
	}
	if c.Learn <= 0 {
		c.Learn = 10 * time.Second
	}
	if c.MaxBody <= 0 {
		c.MaxBody = 4 << 20
	}
	if c.Transport == nil {
		c.Transport = newTransport()
	}
	return c
}

// newTransport keeps one or two connections per endpoint and lets them go before the engine does: uvicorn closes
// after 5.0 s of silence.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    3 * time.Second,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        4 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// Fleet asks every endpoint that its pool watches. Create it with New, start it with Run.
type Fleet struct {
	cfg    Config
	pool   *pool.Pool
	client *http.Client
}

// New returns a fleet that follows p: it asks the endpoints that p has, also those that left and still have requests,
// and tells p what they say.
func New(cfg Config, p *pool.Pool) *Fleet {
	cfg = cfg.withDefaults()
	return &Fleet{cfg: cfg, pool: p, client: &http.Client{
		Transport: cfg.Transport,
		// A redirect would carry the key, and the questions, to whoever it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// followEvery is how often the set of endpoints is compared with the pool's.
const followEvery = 50 * time.Millisecond

// Run asks until ctx ends, and returns when the last question is over.
func (f *Fleet) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := map[string]context.CancelFunc{}
	defer func() {
		for _, cancel := range stop {
			cancel()
		}
		if t, ok := f.cfg.Transport.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for seen := uint64(0); ; {
		if now := f.pool.WatchVersion(); now != seen {
			seen = f.follow(ctx, &wg, stop)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// follow starts asking new endpoints and stops asking those that are no longer watched.
func (f *Fleet) follow(ctx context.Context, wg *sync.WaitGroup, stop map[string]context.CancelFunc) uint64 {
	urls, version := f.pool.Watched()
	wanted := map[string]bool{}
	for _, url := range urls {
		wanted[url] = true
		if stop[url] != nil {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		stop[url] = cancel
		p := newPoller(f, url)
		for _, task := range []func(context.Context){p.reports, p.health, p.learn, p.warm} {
			wg.Go(func() { task(own) })
		}
	}
	for url, cancel := range stop {
		if !wanted[url] {
			cancel()
			delete(stop, url)
		}
	}
	return version
}

// pause waits for d, give or take a fifth; false when ctx ended. The jitter keeps the gateways of a cluster, and the
// endpoints of one gateway, from marching in step.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
