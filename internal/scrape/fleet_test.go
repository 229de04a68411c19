package scrape

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/pool"
)

// network is the servers of a test by host, reached without sockets.
type network struct {
	mu    sync.Mutex
	hosts map[string]http.HandlerFunc
	seen  map[string]int // requests by host and path
	open  map[string]int
	most  map[string]int // most requests at a time by host and path
	keys  map[string]bool
}

func newNetwork() *network {
	return &network{hosts: map[string]http.HandlerFunc{}, seen: map[string]int{}, open: map[string]int{}, most: map[string]int{}, keys: map[string]bool{}}
}

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	at := req.URL.Host + req.URL.Path
	n.mu.Lock()
	serve := n.hosts[req.URL.Host]
	n.seen[at]++
	n.open[at]++
	n.most[at] = max(n.most[at], n.open[at])
	n.keys[req.Header.Get("Authorization")] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.open[at]--
		n.mu.Unlock()
	}()
	if serve == nil {
		return nil, fmt.Errorf("dialing %s: connection refused", req.URL.Host)
	}
	w := httptest.NewRecorder()
	serve(w, req)
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

func (n *network) serve(host string, f http.HandlerFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host] = f
}

func (n *network) count(at string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen[at]
}

func (n *network) together(at string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.most[at]
}

const page = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.25\n"

// engine serves like a vLLM server that listens.
func engine(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metrics":
		fmt.Fprint(w, page)
	case "/v1/models":
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","max_model_len":2048,"created":1790812730},{"id":"sql","parent":"tiny","root":"/a","max_model_len":null}]}`)
	case "/version":
		fmt.Fprint(w, `{"version":"0.32.0"}`)
	case "/health":
	default:
		http.NotFound(w, r)
	}
}

// run lets a fleet follow a pool of hosts for a while of bubble time, then f looks at it.
func run(t *testing.T, n *network, cfg pool.Config, hosts []string, lasts time.Duration, f func(p *pool.Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := pool.New(cfg, nil, nil)
		setHosts(p, hosts...)
		ctx, cancel := context.WithCancel(t.Context())
		fleet := New(Config{Transport: n}, p)
		var wg sync.WaitGroup
		wg.Go(func() { _ = fleet.Run(ctx) })
		time.Sleep(lasts)
		synctest.Wait()
		f(p)
		cancel()
		wg.Wait()
	})
}

func setHosts(p *pool.Pool, hosts ...string) {
	var targets []discover.Target
	for _, h := range hosts {
		targets = append(targets, discover.Target{URL: "http://" + h})
	}
	p.SetTargets(targets)
}

func TestEndpointIsReadAndLearned(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", engine)
	run(t, n, pool.Config{Name: "chat", APIKey: "secret"}, []string{"a:8000"}, 10*time.Second, func(p *pool.Pool) {
		e := p.Status().Endpoints[0]
		if e.Running == nil || *e.Running != 3 || e.Waiting == nil || *e.Waiting != 1 || e.Version != "0.32.0" || e.Engine != "vllm" {
			t.Errorf("endpoint %+v", e)
		}
		if len(e.Models) != 2 || e.MaxModelLen != 2048 {
			t.Errorf("models %v, window %d", e.Models, e.MaxModelLen)
		}
		if got := n.count("a:8000/metrics"); got < 40 || got > 64 {
			t.Errorf("the page was read %d times in 10 s, want one every 200 ms, give or take a fifth", got)
		}
		if got := n.count("a:8000/v1/models"); got > 3 {
			t.Errorf("the model list was read %d times in 10 s", got)
		}
		if got := n.count("a:8000/server_info"); got > 1 {
			t.Errorf("the settings were asked for %d times", got)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.keys[""] || !n.keys["Bearer secret"] {
			t.Errorf("keys sent: %v", n.keys)
		}
	})
}

func TestSlowPageIsNeverAskedTwiceAtATime(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			time.Sleep(1500 * time.Millisecond)
		}
		engine(w, r)
	})
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, 20*time.Second, func(p *pool.Pool) {
		if most := n.together("a:8000/metrics"); most != 1 {
			t.Errorf("%d readings at a time", most)
		}
		if e := p.Status().Endpoints[0]; e.ReportStale {
			t.Error("a page that takes 1.5 s, as that of a busy engine, counts as stale")
		}
	})
}

func TestHangingPageHoldsUpNothingElse(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			<-r.Context().Done()
			return
		}
		engine(w, r)
	})
	n.serve("b:8000", engine)
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000", "b:8000"}, 10*time.Second, func(p *pool.Pool) {
		st := p.Status()
		a, b := st.Endpoints[0], st.Endpoints[1]
		if a.ReportError == "" || a.ReportAge != nil || len(a.Models) != 2 {
			t.Errorf("the hanging endpoint: error %q, models %v", a.ReportError, a.Models)
		}
		if b.ReportStale || b.ReportError != "" {
			t.Errorf("the other endpoint: %q", b.ReportError)
		}
		if n.count("a:8000/health") == 0 {
			t.Error("nobody asked how the hanging one is")
		}
	})
}

func TestBadAnswersAreErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"too large": {func(w http.ResponseWriter, r *http.Request) {
			for range 5 {
				fmt.Fprint(w, strings.Repeat("# filler\n", 1<<17))
			}
		}, "too large"},
		"status":     {func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 500) }, "status 500"},
		"no metrics": {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>") }, "no known series"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://thief/metrics", http.StatusTemporaryRedirect)
		}, "status 307"},
	} {
		n := newNetwork()
		n.serve("a:8000", tc.serve)
		n.serve("thief", engine)
		run(t, n, pool.Config{Name: "chat", APIKey: "secret"}, []string{"a:8000"}, 3*time.Second, func(p *pool.Pool) {
			e := p.Status().Endpoints[0]
			if !strings.Contains(e.ReportError, tc.want) || !strings.Contains(e.ReportError, "a:8000") {
				t.Errorf("%s: error %q, want the address and %q", name, e.ReportError, tc.want)
			}
		})
		for at := range n.seen {
			if strings.HasPrefix(at, "thief") {
				t.Errorf("%s: %s was asked: a redirect was followed", name, at)
			}
		}
	}
}

func TestSecondPathOfMetrics(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, "[]")
		case "/prometheus/metrics":
			fmt.Fprint(w, "trtllm_num_requests_running 4\n")
		default:
			engine(w, r)
		}
	})
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, 5*time.Second, func(p *pool.Pool) {
		if e := p.Status().Endpoints[0]; e.ReportStale || e.Engine != "trtllm" || *e.Running != 4 {
			t.Errorf("engine %q, stale %v", e.Engine, e.ReportStale)
		}
		if n.count("a:8000/metrics") > 1 {
			t.Errorf("the page that shows nothing was asked %d times", n.count("a:8000/metrics"))
		}
	})
}

func TestSettingsPagesGiveTheLimit(t *testing.T) {
	for name, tc := range map[string]struct{ page, path, body string }{
		"llama.cpp": {"llamacpp:requests_processing 1\n", "/props", `{"total_slots":4}`},
		"sglang":    {"sglang:num_running_reqs 1\n", "/server_info", `{"max_running_requests":64}`},
		"vllm":      {page, "/server_info", `{"vllm_config":{"scheduler_config":{"max_num_seqs":8},"parallel_config":{"data_parallel_size":2}}}`},
	} {
		n := newNetwork()
		n.serve("a:8000", func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/metrics":
				fmt.Fprint(w, tc.page)
			case tc.path:
				fmt.Fprint(w, tc.body)
			default:
				engine(w, r)
			}
		})
		want := map[string]int{"llama.cpp": 4, "sglang": 64, "vllm": 16}[name]
		run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, 15*time.Second, func(p *pool.Pool) {
			if got := p.Status().Endpoints[0].MaxNumSeqs; got != want {
				t.Errorf("%s: limit %d, want %d", name, got, want)
			}
		})
	}
}

func TestEndpointsComeAndGo(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", engine)
	n.serve("b:8000", engine)
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, time.Second, func(p *pool.Pool) {
		b, err := p.Pick(&pool.Request{})
		if err != nil {
			t.Fatal(err)
		}
		setHosts(p, "b:8000")
		time.Sleep(time.Second)
		if n.count("b:8000/metrics") == 0 {
			t.Error("the new endpoint is not read")
		}
		before := n.count("a:8000/metrics")
		time.Sleep(time.Second)
		if n.count("a:8000/metrics") == before {
			t.Error("the removed endpoint is not watched although it has a request")
		}
		b.Done(pool.Result{})
		time.Sleep(time.Second)
		before = n.count("a:8000/metrics")
		time.Sleep(5 * time.Second)
		if n.count("a:8000/metrics") != before {
			t.Error("the removed endpoint is still read after its last request")
		}
	})
}

func TestDeadEndpointIsProbedAndComesBack(t *testing.T) {
	n := newNetwork()
	quiet := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
			return
		}
		engine(w, r)
	}
	n.serve("b:8000", quiet)
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000", "b:8000"}, time.Second, func(p *pool.Pool) {
		for failed := false; !failed; time.Sleep(10 * time.Millisecond) {
			b, err := p.Pick(&pool.Request{})
			if err != nil {
				t.Error(err)
				return
			}
			if b.Endpoint().Name == "a:8000" {
				failed = b.Repick(health.KindConnect)
			}
			b.Done(pool.Result{Outcome: pool.OK})
		}
		time.Sleep(5 * time.Second)
		n.serve("a:8000", quiet)
		start := time.Now()
		for {
			b, err := p.Pick(&pool.Request{})
			if err != nil {
				t.Error(err)
				return
			}
			name := b.Endpoint().Name
			b.FirstToken()
			b.Done(pool.Result{Outcome: pool.OK})
			if name == "a:8000" {
				return
			}
			if time.Since(start) > 3*time.Second {
				t.Error("it answers again and has no request after 3 s")
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// A metrics page at a port of its own is read there, and everything else at the endpoint.
func TestMetricsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.serve("10.0.0.1:8000", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				http.NotFound(w, r)
				return
			}
			engine(w, r)
		})
		n.serve("10.0.0.1:8080", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics" {
				t.Errorf("%s is asked for at the metrics port", r.URL.Path)
			}
			engine(w, r)
		})
		start := time.Now()
		p := pool.New(pool.Config{Name: "a"}, nil, func() time.Duration { return time.Since(start) })
		p.SetTargets([]discover.Target{{URL: "http://10.0.0.1:8000", MetricsPort: 8080}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { _ = New(Config{Transport: n}, p).Run(ctx) })
		time.Sleep(2 * time.Second)
		e := p.Status().Endpoints[0]
		if e.Running == nil || *e.Running != 3 || len(e.Models) != 2 || n.count("10.0.0.1:8000/metrics") > 0 {
			t.Errorf("running %v, models %v, %d questions at the endpoint's own port", e.Running, e.Models, n.count("10.0.0.1:8000/metrics"))
		}
		p.SetTargets([]discover.Target{{URL: "http://10.0.0.1:8000"}}) // the label is gone
		time.Sleep(time.Second)
		if n.count("10.0.0.1:8000/metrics") == 0 {
			t.Error("the page is still read at the other port")
		}
	})
}
