package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/pool"
)

// poller asks one endpoint. Its tasks run side by side and never ask the same page twice at a time.
type poller struct {
	f      *Fleet
	url    string
	engine atomic.Pointer[string] // as the metrics page says
	path   int                    // index into metricsPaths; of the task reports
	page   *Page
	buf    bytes.Buffer
}

// metricsPaths are tried in turn until one shows something that is understood. TensorRT-LLM has JSON at the first.
var metricsPaths = [...]string{"/metrics", "/prometheus/metrics"}

func newPoller(f *Fleet, url string) *poller { return &poller{f: f, url: url, page: NewPage()} }

// reports reads the metrics page until ctx ends.
func (p *poller) reports(ctx context.Context) {
	for {
		r, err := p.report(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := p.f.cfg.Interval
		if err != nil {
			if noPage(err) || wantsKey(err) {
				wait = max(wait, pageless)
			}
			p.f.pool.ReportFailed(p.url, err)
		} else {
			p.engine.Store(&r.Engine)
			p.f.pool.Report(p.url, r)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// pageless is how often a server without a metrics page for us is asked whether it has one now.
const pageless = time.Second

// report reads the page at the path that was good last. Only an answer that there is no such page leads to the others: a
// server that cannot be reached is not asked for a page that nobody named.
func (p *poller) report(ctx context.Context) (pool.Report, error) {
	var failed error
	first, base := p.path, p.f.pool.ReportURL(p.url)
	for range metricsPaths {
		r, err := p.read(ctx, base+metricsPaths[p.path])
		if err == nil {
			return r, nil
		}
		path := metricsPaths[p.path]
		switch {
		case !noPage(err):
			p.path = first
			return r, fmt.Errorf("scraping %s%s: %w", base, path, err)
		case failed == nil:
			failed = fmt.Errorf("scraping %s%s: %w", base, path, err)
		default:
			failed = fmt.Errorf("%w; %s: %w", failed, path, err)
		}
		p.path = (p.path + 1) % len(metricsPaths)
	}
	return pool.Report{}, failed
}

func (p *poller) read(ctx context.Context, at string) (pool.Report, error) {
	start := time.Now()
	p.buf.Reset()
	err := p.page200(ctx, at, &p.buf)
	if err == nil {
		if err = p.page.Parse(p.buf.Bytes()); err != nil {
			err = &pool.AnswerError{Status: http.StatusOK, Err: err}
		}
	}
	if err != nil {
		return pool.Report{}, err
	}
	r := p.page.Report()
	r.Took = time.Since(start)
	return r, nil
}

// noPage says that the server answered that it has no such page.
func noPage(err error) bool {
	var a *pool.AnswerError
	return errors.As(err, &a) && a.NoPage()
}

func wantsKey(err error) bool {
	var a *pool.AnswerError
	return errors.As(err, &a) && a.WantsKey()
}

// healthTick is how often the pool is asked whether it wants to know, healthTimeout how long the page may take. An
// answer that takes longer says little: the front end of a busy engine starves.
const (
	healthTick    = 100 * time.Millisecond
	healthTimeout = 3 * time.Second
)

// health reads the health page whenever the pool wants, until ctx ends.
func (p *poller) health(ctx context.Context) {
	for {
		if p.f.pool.NeedsHealth(p.url) {
			p.probe(ctx)
		}
		if !pause(ctx, healthTick) {
			return
		}
	}
}

func (p *poller) probe(ctx context.Context) {
	connected := false
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected = true },
	})
	status, err := p.get(traced, p.url+"/health", healthTimeout, io.Discard)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		p.f.pool.HealthProbe(p.url, status, nil)
	case connected && errors.Is(err, context.DeadlineExceeded):
		p.f.pool.HealthMute(p.url)
	default:
		p.f.pool.HealthProbe(p.url, 0, fmt.Errorf("asking %s/health: %w", p.url, err))
	}
}

// firstLearn is how often the model list is asked for until it was read once, and a few times until it is known which
// engine answers.
const (
	firstLearn  = 500 * time.Millisecond
	settleTries = 6
)

// learn reads the model list, the version and the engine's settings until ctx ends.
func (p *poller) learn(ctx context.Context) {
	known, settled := false, ""
	for tries := 1; ; tries++ {
		var facts pool.Facts
		models, err := p.models(ctx)
		if err == nil {
			facts.Models, known = models, true
			facts.Version = p.version(ctx)
		}
		if e := p.engine.Load(); err == nil && e != nil && *e != settled {
			settled = *e
			facts.MaxNumSeqs = p.maxNumSeqs(ctx, *e)
		}
		if ctx.Err() != nil {
			return
		}
		wait := p.f.cfg.Learn
		if !known || settled == "" && tries < settleTries { // the metrics page names the engine
			wait = min(wait, firstLearn)
		}
		if err == nil {
			p.f.pool.Learned(p.url, facts)
		} else {
			p.f.pool.LearnFailed(p.url, err)
			if (noPage(err) || wantsKey(err)) && tries >= settleTries {
				wait = p.f.cfg.Learn // asking more often changes nothing
			}
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// models reads /v1/models.
func (p *poller) models(ctx context.Context) ([]pool.Model, error) {
	var list struct {
		Data []struct {
			ID          string  `json:"id"`
			Root        string  `json:"root"`
			Parent      string  `json:"parent"`
			MaxModelLen float64 `json:"max_model_len"`
			Created     float64 `json:"created"`
			OwnedBy     string  `json:"owned_by"`
		} `json:"data"`
	}
	if err := p.getJSON(ctx, "/v1/models", &list); err != nil {
		return nil, err
	}
	if list.Data == nil {
		return nil, fmt.Errorf("reading %s/v1/models: %w", p.url, &pool.AnswerError{Status: http.StatusOK, Err: errNoList})
	}
	models := make([]pool.Model, 0, len(list.Data))
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		models = append(models, pool.Model{ID: m.ID, Root: m.Root, Parent: m.Parent, MaxModelLen: whole(m.MaxModelLen),
			Created: int64(whole(m.Created)), OwnedBy: m.OwnedBy, Adapter: m.Parent != ""})
	}
	return models, nil
}

// whole turns a JSON number into a count; what cannot be one is 0, unknown.
func whole(v float64) int {
	if !(v > 0 && v < 1<<53) {
		return 0
	}
	return int(v)
}

// version reads /version; "" when there is none.
func (p *poller) version(ctx context.Context) string {
	var v struct {
		Version string `json:"version"`
	}
	if err := p.getJSON(ctx, "/version", &v); err != nil || len(v.Version) > 64 {
		return ""
	}
	return v.Version
}

// maxNumSeqs reads how many sequences the engine runs at once from the page of its settings, which vLLM has in
// development mode only; 0 when it does not say.
func (p *poller) maxNumSeqs(ctx context.Context, engine string) int {
	var s struct {
		Slots   int `json:"total_slots"`          // llama.cpp
		Running int `json:"max_running_requests"` // SGLang
		Config  struct {
			Scheduler struct {
				MaxNumSeqs int `json:"max_num_seqs"`
			} `json:"scheduler_config"`
			Parallel struct {
				Ranks int `json:"data_parallel_size"`
			} `json:"parallel_config"`
		} `json:"vllm_config"`
	}
	path := map[string]string{engineVLLM: "/server_info?config_format=json", engineSGLang: "/server_info", engineLlama: "/props"}[engine]
	if path == "" || p.getJSON(ctx, path, &s) != nil {
		return 0
	}
	n := max(s.Slots, s.Running, s.Config.Scheduler.MaxNumSeqs*max(1, s.Config.Parallel.Ranks))
	if n < 0 || n > 1<<20 {
		return 0
	}
	return n
}

func (p *poller) getJSON(ctx context.Context, path string, into any) error {
	var buf bytes.Buffer
	err := p.page200(ctx, p.url+path, &buf)
	if err == nil {
		if err = json.Unmarshal(buf.Bytes(), into); err != nil {
			err = &pool.AnswerError{Status: http.StatusOK, Err: err}
		}
	}
	if err != nil {
		return fmt.Errorf("reading %s%s: %w", p.url, path, err)
	}
	return nil
}

var (
	errTooLarge = errors.New("the page is too large")
	errNoList   = errors.New("no list")
)

// page200 reads one page into w. An answer of another status than 200 is an *pool.AnswerError.
func (p *poller) page200(ctx context.Context, at string, w io.Writer) error {
	status, err := p.get(ctx, at, p.f.cfg.Timeout, w)
	if err == nil && status != http.StatusOK {
		err = &pool.AnswerError{Status: status}
	}
	return err
}

// do says who asks, and asks. Errors do not name the page. The answer's body is to be closed.
func (p *poller) do(req *http.Request) (*http.Response, error) {
	req.Header.Set("User-Agent", "pointsman")
	if key := p.f.pool.APIKey(); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := p.f.client.Do(req)
	var named *url.Error
	if errors.As(err, &named) {
		err = named.Err
	}
	return resp, err
}

// get reads one page into w, whatever its status. A page beyond the bound is an error. Errors do not name the page.
func (p *poller) get(ctx context.Context, at string, timeout time.Duration, w io.Writer) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return 0, err
	}
	resp, err := p.do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, io.LimitReader(resp.Body, p.f.cfg.MaxBody+1))
	if err != nil {
		return 0, err
	}
	if n > p.f.cfg.MaxBody {
		return 0, errTooLarge
	}
	return resp.StatusCode, nil
}
