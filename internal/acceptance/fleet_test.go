// Package acceptance holds what users were promised, as tests of the whole gateway: the real wiring, real HTTP over
// loopback, vllmsim or a plain scripted server as model servers. Everything starts inside the test's process; load is
// bounded in count.
package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/vllmsim"
)

// gateway starts the real gateway with one pool; extra lines of YAML go below the pool (indented by four) and at the
// top level.
func gateway(t *testing.T, endpoints, poolYAML, topYAML string) *app.Gateway {
	t.Helper()
	text := "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndebug_headers: true\n" + topYAML + "pools:\n  - name: chat\n    " + endpoints + "\n" + poolYAML
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	level := slog.LevelError
	if os.Getenv("POINTSMAN_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	g, err := app.Start(t.Context(), cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func list(urls ...string) string { return "endpoints: [" + strings.Join(urls, ", ") + "]" }

// client keeps its connections, as a busy application does.
func client(t *testing.T, conns int) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 60 * time.Second}
}

// scripted is a model server whose every answer the test decides: it has a metrics page that never changes.
type scripted struct {
	*httptest.Server
	name     string // host:port, as x-pointsman-endpoint shows it
	served   atomic.Int64
	page     atomic.Pointer[string]
	delay    atomic.Int64 // before an answer
	handle   atomic.Pointer[http.HandlerFunc]
	inFlight atomic.Int64
	sick     atomic.Bool // its pages answer 503
	posted   atomic.Int64
}

const idlePage = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} %d.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="20000"} 1.0
`

func newScripted(t *testing.T, ln net.Listener) *scripted {
	t.Helper()
	s := &scripted{}
	page := fmt.Sprintf(idlePage, 0)
	s.page.Store(&page)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	if ln != nil {
		s.Listener.Close()
		s.Listener = ln
	}
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	s.name = strings.TrimPrefix(s.URL, "http://")
	return s
}

// scriptedAt starts one at an address.
func scriptedAt(t *testing.T, addr string) *scripted {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newScripted(t, ln)
}

func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	if s.sick.Load() && r.Method == http.MethodGet {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch r.URL.Path {
	case "/metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		io.WriteString(w, *s.page.Load())
	case "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","max_model_len":131072}]}`)
	case "/version":
		io.WriteString(w, `{"version":"0.32.0"}`)
	case "/health":
	default:
		s.served.Add(1)
		if r.Method == http.MethodPost {
			s.posted.Add(1)
		}
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		if h := s.handle.Load(); h != nil {
			(*h)(w, r)
			return
		}
		io.Copy(io.Discard, r.Body)
		if d := time.Duration(s.delay.Load()); d > 0 {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21}}`)
	}
}

// fleet starts n scripted servers.
func fleet(t *testing.T, n int) ([]*scripted, []string) {
	t.Helper()
	servers, urls := make([]*scripted, n), make([]string, n)
	for i := range servers {
		servers[i] = newScripted(t, nil)
		urls[i] = servers[i].URL
	}
	return servers, urls
}

// sim is one vllmsim server on loopback.
type sim struct {
	*vllmsim.Server
	url, name string
	stop      context.CancelFunc
}

func simConfig() vllmsim.Config {
	return vllmsim.Config{Model: []string{"m"}, MaxModelLen: 131072, MaxNumSeqs: 256, NumBlocks: 19209, BlockSize: 16,
		MaxBatchedTokens: 8192, Profile: "qwen3-32b-h100-tp2", Speed: 10, PrefixCaching: true, DevMode: true}
}

func simFleet(t *testing.T, n int, cfg vllmsim.Config) ([]*sim, []string) {
	t.Helper()
	var sims []*sim
	var urls []string
	for range n {
		s := simAt(t, "127.0.0.1:0", cfg)
		sims, urls = append(sims, s), append(urls, s.url)
	}
	return sims, urls
}

// simAt starts one at an address.
func simAt(t *testing.T, addr string, cfg vllmsim.Config) *sim {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	server, err := vllmsim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(ctx, ln) }()
	t.Cleanup(func() { cancel(); <-done })
	return &sim{server, "http://" + ln.Addr().String(), ln.Addr().String(), cancel}
}

// waitReady waits until the gateway has a report of n endpoints.
func waitReady(t *testing.T, g *app.Gateway, n int) {
	t.Helper()
	eventually(t, patience, func() string {
		ready := 0
		for _, e := range status(t, g).Endpoints {
			if (e.State == "ready" || e.State == "warming") && e.ReportAge != nil && len(e.Models) > 0 {
				ready++
			}
		}
		if ready < n {
			return fmt.Sprintf("%d of %d endpoints are ready", ready, n)
		}
		return ""
	})
}

// eventually polls until check returns "" and fails with its last answer after the time.
func eventually(t *testing.T, within time.Duration, check func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		why := check()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", within, why)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func status(t *testing.T, g *app.Gateway) pool.Status {
	t.Helper()
	return statuses(t, g)[0]
}

func statuses(t *testing.T, g *app.Gateway) []pool.Status {
	t.Helper()
	r, err := http.Get(g.Admin() + "/api/status")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var out struct {
		Pools []pool.Status `json:"pools"`
	}
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil || len(out.Pools) == 0 {
		t.Fatalf("reading the status: %v, %d pools", err, len(out.Pools))
	}
	return out.Pools
}

func endpointStatus(t *testing.T, g *app.Gateway, name string) pool.EndpointStatus {
	t.Helper()
	for _, e := range status(t, g).Endpoints {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("endpoint %s is not in the status", name)
	return pool.EndpointStatus{}
}

// answer is what one request came to.
type answer struct {
	status   int
	endpoint string
	body     []byte
	took     time.Duration
	err      error
	header   http.Header
}

// post sends a body to a path of g, or to a whole URL when g is nil.
func post(c *http.Client, g *app.Gateway, path string, body any) answer {
	if g != nil {
		path = g.API() + path
	}
	var raw []byte
	switch b := body.(type) {
	case []byte:
		raw = b
	case string:
		raw = []byte(b)
	default:
		raw, _ = json.Marshal(body)
	}
	start := time.Now()
	r, err := c.Post(path, "application/json", bytes.NewReader(raw))
	if err != nil {
		return answer{err: err, took: time.Since(start)}
	}
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	return answer{r.StatusCode, r.Header.Get("x-pointsman-endpoint"), got, time.Since(start), err, r.Header}
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func chatBody(messages []message, maxTokens int) map[string]any {
	return map[string]any{"model": "m", "messages": messages, "max_tokens": maxTokens}
}

// words is text of about n bytes that differs from the first bytes on between seeds.
func words(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "w%d.%d ", seed, i*i%9973)
	}
	return b.String()[:n]
}

// parallel runs f(0..n-1) on at most width goroutines.
func parallel(n, width int, f func(i int)) {
	var wg sync.WaitGroup
	next := atomic.Int64{}
	for range min(n, width) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
}

func counts(answers []answer) map[string]int {
	out := map[string]int{}
	for _, a := range answers {
		out[a.endpoint]++
	}
	return out
}

func mustOK(t *testing.T, answers []answer) {
	t.Helper()
	bad := 0
	for _, a := range answers {
		if a.err != nil || a.status != 200 {
			if bad++; bad <= 3 {
				t.Errorf("status %d, err %v: %.200s", a.status, a.err, a.body)
			}
		}
	}
	if bad > 0 {
		t.Fatalf("%d of %d requests failed", bad, len(answers))
	}
}
