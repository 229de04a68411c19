package proxy

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"

	"pointsman.dev/pointsman/internal/body"
	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
)

// Proxy is the handler of the API's listener. Create it with New. It may be used by any number of goroutines.
type Proxy struct {
	cfg     Config
	reverse *httputil.ReverseProxy
	buffers *copyBuffers
	desk    flight.Desk
	*lasting

	limitText []string // see headerLimit; never changed

	scanners sync.Pool // *llmapi.Scanner
	taps     sync.Pool // *llmapi.Stream
}

// lasting is what outlives a change of the configuration: the Proxy that follows another shares it.
type lasting struct {
	bodies *body.Storage
	memory *flight.Memory

	mu         sync.RWMutex
	transports map[string]http.RoundTripper // by pool name

	roster  roster
	leaving atomic.Bool // Leave was called
	cutting atomic.Bool // CutAll was called
}

// New returns a Proxy.
func New(cfg Config) *Proxy {
	p := &Proxy{cfg: cfg.withDefaults()}
	if cfg.Previous != nil {
		p.lasting = cfg.Previous.lasting
	} else {
		p.lasting = &lasting{transports: map[string]http.RoundTripper{}, memory: p.cfg.Memory}
		p.bodies = body.New(p.cfg.BodyMemory, p.cfg.TempDir, p.noTempFile())
	}
	p.desk = flight.Desk{Directory: p.cfg.Directory, Metrics: p.cfg.Metrics, Access: p.cfg.Access, Memory: p.memory}
	p.limitText = secondsText(p.cfg.Limit)
	p.cfg.Previous = nil // its requests end by themselves
	p.scanners.New = func() any { return new(llmapi.Scanner) }
	p.taps.New = func() any { return new(llmapi.Stream) }
	p.buffers = newCopyBuffers()
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      dispatcher{},
		ModifyResponse: modifyResponse,
		ErrorHandler:   handleError,
		BufferPool:     p.buffers,
		ErrorLog:       slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
		// Streams and bodies of unknown length are flushed by ReverseProxy at each write. Bodies of known length
		// are flushed in answer.go before a read that may wait: -1 here would cost each small answer a goroutine and
		// a second write.
		FlushInterval: 0,
	}
	return p
}

// noTempFile returns what to do when a body cannot go to a file: warn, once, and go on in memory.
func (p *Proxy) noTempFile() func(error) {
	var once sync.Once
	return func(err error) {
		once.Do(func() {
			p.cfg.Log.Warn("large request bodies stay in memory: no temporary file can be made", "error", err)
		})
	}
}

// Leave makes every answer from now on tell its client not to use the connection again, so that it opens the next one to a
// gateway that stays. It holds for the Proxies that this one follows and that follow it.
func (p *Proxy) Leave() { p.leaving.Store(true) }

// CutAll ends every request that is in flight within a second, streams with an error event, and every later one too. It
// is for the end of a drain, and holds for the Proxies that this one follows and that follow it.
func (p *Proxy) CutAll() { p.cutting.Store(true) }

// CloseIdle closes the connections to endpoints that are not in use.
func (p *Proxy) CloseIdle() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, t := range p.transports {
		closeIdle(t)
	}
}

func closeIdle(t http.RoundTripper) {
	if c, ok := t.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (p *Proxy) transport(pool string) http.RoundTripper {
	p.mu.RLock()
	t := p.transports[pool]
	p.mu.RUnlock()
	if t != nil {
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t = p.transports[pool]; t == nil {
		t = p.cfg.Transport(pool)
		p.transports[pool] = t
	}
	return t
}

// ServeHTTP implements http.Handler. It panics with http.ErrAbortHandler, as ReverseProxy does, when an answer that has
// begun cannot be finished.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := p.begin(w, r)
	defer x.end()
	if isPreflight(r) {
		if x.preflight() {
			x.forward()
		}
		return
	}
	api, e := llmapi.Lookup(r.Method, r.URL.EscapedPath())
	x.API = api
	x.Rec.Path = api.Path
	if e != nil {
		if api.Path == "" {
			x.Rec.UnknownPath = r.URL.EscapedPath()
		}
		x.refuse(e)
		return
	}
	if api.Kind == llmapi.Models || api.Kind == llmapi.Model {
		x.serveModels()
		return
	}
	if !x.intake() {
		return
	}
	if e := x.Resolve(); e != nil {
		x.refuse(e)
		return
	}
	if x.API.Kind != llmapi.Response {
		x.limit(x.Rec.Model)
	}
	x.watch.streaming.Store(x.Req != nil && x.Req.Stream)
	x.forward()
}

// forward hands the request to ReverseProxy.
func (x *exchange) forward() {
	in := x.in.WithContext(x.ctx)
	in.Body, in.ContentLength, in.TransferEncoding, in.Trailer = http.NoBody, 0, nil, nil // the dispatcher attaches the stored one
	x.p.reverse.ServeHTTP(&x.shown, in)
	x.copied = true
}

// exchangeKey finds the exchange in a request's context from within ReverseProxy's hooks.
type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// rewrite is ReverseProxy's Rewrite hook.
func rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In)
	cleanRequest(pr.Out.Header, []string{x.Rec.ID})
	forward(pr)
	if x.API.Kind != llmapi.Realtime || !strings.EqualFold(pr.Out.Header.Get("Upgrade"), "websocket") { // nothing else may switch protocols
		delete(pr.Out.Header, "Connection")
		delete(pr.Out.Header, "Upgrade")
	}
	pr.Out.Host = "" // the endpoint's
}

// copyBuffers are the buffers of the copy from endpoint to client.
type copyBuffers struct{ pool sync.Pool }

// copyBufferSize is what one read of an answer can take. Events are far smaller; a large body fills it.
const copyBufferSize = 32 << 10

func newCopyBuffers() *copyBuffers {
	b := &copyBuffers{}
	b.pool.New = func() any { return new([copyBufferSize]byte) }
	return b
}

// Get implements httputil.BufferPool.
func (b *copyBuffers) Get() []byte { return b.pool.Get().(*[copyBufferSize]byte)[:] }

// Put implements httputil.BufferPool.
func (b *copyBuffers) Put(p []byte) { b.pool.Put((*[copyBufferSize]byte)(p)) }
