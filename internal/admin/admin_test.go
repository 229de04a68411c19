package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

func get(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

func TestHealthAndReadiness(t *testing.T) {
	ready, reason := false, "none of the 2 endpoints of pool chat is known usable"
	s := New(Config{Ready: func() (bool, string) { return ready, reason }})
	check := func(path string, status int, body string) {
		t.Helper()
		if w := get(s, "GET", path); w.Code != status || w.Body.String() != body {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, status, body)
		}
	}
	check("/healthz", 200, "ok\n")
	check("/readyz", 503, "not ready: none of the 2 endpoints of pool chat is known usable\n")
	reason = ""
	check("/readyz", 503, "not ready: no endpoint is known to be usable\n")
	ready = true
	check("/readyz", 200, "ready\n")
	check("/healthz", 200, "ok\n")
}

func TestRoutes(t *testing.T) {
	s := New(Config{})
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 200}, {"HEAD", "/", 200}, {"GET", "/app.js", 200}, {"GET", "/style.css", 200}, {"GET", "/nope", 404},
		{"GET", "/debug/pprof/", 200}, {"GET", "/debug/pprof/goroutine?debug=1", 200}, {"GET", "/debug/pprof/cmdline", 403},
		{"GET", "/debug/pprof/profile?seconds=3600", 400}, {"GET", "/debug/pprof/trace?seconds=1e9", 400}, {"GET", "/debug/pprof/heap?seconds=x", 400},
		{"GET", "/api/status", 200}, {"GET", "/api/explain", 404}, {"POST", "/api/status", 405}, {"POST", "/readyz", 405}, {"PUT", "/", 405},
	} {
		if w := get(s, c.method, c.path); w.Code != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, w.Code, c.status)
		}
	}
}

// TestMetricsPage scrapes the page as Prometheus would, with the gauges of the pools on it.
func TestMetricsPage(t *testing.T) {
	m := telemetry.New(telemetry.Build{Version: "1.2.3"})
	m.CollectPools(samplePools)
	w := get(New(Config{Metrics: m.Handler()}), "GET", "/metrics")
	var families map[string]*dto.MetricFamily
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(families["pointsman_in_flight_requests"].GetMetric()); n != 7 {
		t.Errorf("%d endpoints on the page, want 7", n)
	}
	if n := len(families["pointsman_endpoint_running"].GetMetric()); n != 6 {
		t.Errorf("%d endpoints with a running count, want 6: one is unknown", n)
	}
}

func TestExplain(t *testing.T) {
	s := New(Config{Explain: func(id string) (any, bool) {
		if id == "gone" {
			return nil, false
		}
		return sampleExplanation(), true
	}})
	var got pool.Explanation
	w := get(s, "GET", "/api/explain?id=01J9ZK3V7Q8M")
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
		t.Fatalf("%d: %v", w.Code, err)
	}
	if diff := cmp.Diff(sampleExplanation(), got); diff != "" {
		t.Error(diff)
	}
	w = get(s, "GET", "/api/explain?id=gone")
	if want := `{"error":"this request is not among the recent picks","request_id":"gone"}` + "\n"; w.Code != 404 || w.Body.String() != want {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	s = New(Config{Explain: func(string) (any, bool) { return math.NaN(), true }})
	if w = get(s, "GET", "/api/explain"); w.Code != 500 {
		t.Errorf("an answer that is no JSON: %d, want 500", w.Code)
	}
}

// record is one request of the pool "chat".
func record(m *telemetry.Metrics, outcome string, ttft time.Duration) {
	m.Pick("chat", "prefix", 4*time.Microsecond)
	m.Done(&telemetry.Record{Model: "m", Pool: "chat", Outcome: outcome, PromptTokens: 1000, PredictedHit: 800, CachedTokens: 700, OutputTokens: 50, TTFT: ttft})
}

func TestFigures(t *testing.T) {
	m := telemetry.New(telemetry.Build{})
	s := New(Config{Status: samplePools, Traffic: m.Traffic})
	s.sample()
	for range 10 { // ten seconds of 20 requests, one of which fails
		for i := range 20 {
			record(m, map[bool]string{true: "upstream_error", false: "ok"}[i == 0], 200*time.Millisecond)
		}
		s.sample()
	}
	chat := s.view(s.lately(), true).Pools[0]
	f := chat.Traffic
	near := func(name string, got *float64, want, tolerance float64) {
		t.Helper()
		if got == nil || math.Abs(*got-want) > tolerance*want {
			t.Errorf("%s is %v, want %v", name, orNaN(got), want)
		}
	}
	near("requests per second", f.RPS, 20, 1e-9)
	near("tokens per second", f.TokenRate, 1000, 1e-9)
	near("median", f.TTFT50, 0.2, 0.1)
	near("predicted", f.PredictedHit, 0.8, 1e-9)
	near("actual", f.ActualHit, 0.7, 1e-9)
	near("pick", f.Pick, 4e-6, 1e-9)
	if f.Requests != 200 || f.Failed != 10 || f.Reasons["prefix"] != 200 {
		t.Errorf("figures: %+v", f)
	}
	if n := len(chat.History.RPS); n != 11 {
		t.Errorf("%d points of history, want 11", n)
	}
	for range 2 * points {
		s.sample()
	}
	chat = s.view(s.lately(), true).Pools[0]
	if n := len(chat.History.RPS); n != points {
		t.Errorf("%d points of history, want %d", n, points)
	}
	if f = chat.Traffic; *f.RPS != 0 || f.TTFT50 != nil || f.ActualHit != nil || f.Requests != 0 {
		t.Errorf("after a silent minute: %+v", f)
	}
}

func TestHistoryForgets(t *testing.T) {
	list := samplePools()
	s := New(Config{Status: func() []pool.Status { return list }})
	s.sample()
	if n := len(s.history.endpoints); n != 7 {
		t.Fatalf("%d endpoints with a history, want 7", n)
	}
	list = list[:1]
	list[0].Endpoints = list[0].Endpoints[:2]
	s.sample()
	s.sample()
	if a, b := len(s.history.endpoints), len(s.history.pools); a != 2 || b != 1 {
		t.Errorf("%d endpoints and %d pools with a history, want 2 and 1", a, b)
	}
}

// TestEvents reads the stream over a real server: history once, then one event per second, until the gateway ends.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := telemetry.New(telemetry.Build{})
		s := New(Config{Status: samplePools, Traffic: m.Traffic, Version: "1.2.3"})
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		synctest.Wait()
		pr, pw := io.Pipe()
		w := &pipeWriter{Writer: pw, header: http.Header{}}
		done := make(chan struct{})
		go func() {
			s.ServeHTTP(w, httptest.NewRequest("GET", "/api/events", nil))
			_ = pw.Close()
			close(done)
		}()
		sc := bufio.NewScanner(pr)
		sc.Buffer(nil, 1<<20)
		start := time.Now()
		for i := range 4 {
			v := nextEvent(t, sc)
			if history := v.Pools[0].History != nil; history != (i == 0) {
				t.Errorf("event %d: history %v", i, history)
			}
			if i > 0 && len(v.Pools[0].Point.InFlight) != 1 {
				t.Errorf("event %d has no point", i)
			}
			if got := time.Since(start); got != time.Duration(i)*time.Second {
				t.Errorf("event %d after %v", i, got)
			}
		}
		cancel() // the gateway ends: the stream must not hold it up
		go func() { _, _ = io.Copy(io.Discard, pr) }()
		<-done
		if got := time.Since(start); got > 3*time.Second {
			t.Errorf("the stream ended %v after the gateway", got-3*time.Second)
		}
	})
}

type pipeWriter struct {
	io.Writer
	header http.Header
}

func (p *pipeWriter) Header() http.Header { return p.header }
func (p *pipeWriter) WriteHeader(int)     {}
func (p *pipeWriter) Flush()              {}

func nextEvent(t *testing.T, sc *bufio.Scanner) View {
	t.Helper()
	for sc.Scan() {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			var v View
			if err := json.Unmarshal([]byte(data), &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("the stream ended")
	return View{}
}

// TestViewersShareAStatus: a hundred viewers ask the pools no more often than one.
func TestViewersShareAStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := New(Config{Status: func() []pool.Status { asked++; return samplePools() }})
		s.sample()
		for range 100 {
			s.view(s.lately(), false)
		}
		if asked != 1 {
			t.Errorf("the pools were asked %d times", asked)
		}
		time.Sleep(3 * step)
		if s.lately(); asked != 2 {
			t.Errorf("the pools were asked %d times, want 2: the sample is old", asked)
		}
	})
}

func TestEventStreamsAreBounded(t *testing.T) {
	s := New(Config{})
	s.streams.Store(maxStreams)
	if w := get(s, "GET", "/api/events"); w.Code != 503 {
		t.Errorf("one stream too many: %d", w.Code)
	}
	if n := s.streams.Load(); n != maxStreams {
		t.Errorf("%d streams are counted after a refusal, want %d", n, maxStreams)
	}
}

func TestNotices(t *testing.T) {
	views := func(change func(*PoolView)) []PoolView {
		v := PoolView{Status: samplePools()[0]}
		v.Endpoints = []pool.EndpointStatus{sampleEndpoint("a:1"), sampleEndpoint("b:1"), sampleEndpoint("c:1")}
		change(&v)
		return []PoolView{v}
	}
	for _, c := range []struct {
		name   string
		change func(*PoolView)
		want   string
	}{
		{"nothing is wrong", func(*PoolView) {}, ""},
		{"no endpoints", func(v *PoolView) { v.Endpoints, v.Ready = nil, false }, "error no_endpoints []"},
		{"source broken", func(v *PoolView) { v.Source = "listing: connection refused" }, "warn source_broken []"},
		{"not ready", func(v *PoolView) { v.Ready = false }, "error not_ready []"},
		{"one stale", func(v *PoolView) { v.Endpoints[1].ReportStale = true }, "warn stale_report [b:1]"},
		{"all stale is said once", func(v *PoolView) {
			v.AllStale = true
			for i := range v.Endpoints {
				v.Endpoints[i].ReportStale = true
			}
		}, "warn all_stale []"},
		{"contradiction", func(v *PoolView) { v.Warnings = []string{"policy is prefix, but prefix caching is off on a:1"} }, "warn policy_contradiction []"},
		{"two ejected and one foreign, the worst first", func(v *PoolView) {
			v.Endpoints[0].State, v.Endpoints[2].State, v.Endpoints[1].Foreign = "ejected", "ejected", 3
		}, "warn ejected [a:1 c:1]; info foreign [b:1]"},
		{"failing", func(v *PoolView) { v.Traffic = Figures{Requests: 100, Failed: 5} }, "error failing []"},
		{"one failure of few is no trend", func(v *PoolView) { v.Traffic = Figures{Requests: 10, Failed: 1} }, ""},
		{"all full", func(v *PoolView) { v.Traffic = Figures{Reasons: map[string]int64{"all_full": 30, "load": 70}} }, "warn all_full []"},
		{"hits do not come true", func(v *PoolView) { v.Traffic = Figures{Requests: 50, PredictedHit: ptr(0.8), ActualHit: ptr(0.2)} }, "warn hit_gap []"},
		{"hits unknown", func(v *PoolView) { v.Traffic = Figures{Requests: 50, PredictedHit: ptr(0.8)} }, ""},
		{"no models", func(v *PoolView) { v.Endpoints[1].Models = nil }, "warn no_models [b:1]"},
		{"no models of one that is away", func(v *PoolView) { v.Endpoints[1].Models, v.Endpoints[1].State = nil, "gone" }, "warn gone [b:1]"},
		{"models need a key", func(v *PoolView) {
			e := &v.Endpoints[1]
			e.Models, e.WantsKey, e.ModelsError = nil, true, "reading http://b:1/v1/models: status 401"
		}, "warn wants_key [b:1]"},
		{"a web server", func(v *PoolView) {
			e := &v.Endpoints[1]
			e.State, e.Models, e.NoModelServer, e.ReportStale, e.Cause = "warming", nil, true, true, "/metrics: status 404"
		}, "warn no_model_server [b:1]"},
		{"queue fills up", func(v *PoolView) { v.Queue = pool.QueueStatus{Waiting: 27, Max: 50, Oldest: 2} }, "warn queue []"},
		{"queue is full", func(v *PoolView) { v.Queue = pool.QueueStatus{Waiting: 50, Max: 50} }, "error queue []"},
		{"a few wait", func(v *PoolView) { v.Queue = pool.QueueStatus{Waiting: 5, Max: 50} }, ""},
		{"slow", func(v *PoolView) { v.Endpoints[0].Slowness = 8 }, "warn slow [a:1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, n := range notices(views(c.change), nil, 0) {
				got = append(got, fmt.Sprintf("%s %s %v", n.Level, n.Kind, n.Endpoints))
				if n.Title == "" || n.Pool != "chat" || n.Level != LevelInfo && n.Todo == "" {
					t.Errorf("%s says too little: %+v", n.Kind, n)
				}
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
}

// TestLastError: what cannot be reached says why, as far as it is known, and what is ejected what it was ejected for.
func TestLastError(t *testing.T) {
	v := PoolView{Status: samplePools()[0]}
	v.Endpoints = []pool.EndpointStatus{sampleEndpoint("a:1"), sampleEndpoint("b:1"), sampleEndpoint("c:1")}
	for i, why := range []string{"", "scraping http://b:1/metrics: dial tcp: no such host", "connection refused"} {
		v.Endpoints[i].State, v.Endpoints[i].ReportError, v.Endpoints[i].Heard = "gone", why, true
	}
	v.Endpoints[2].Cause, v.Endpoints[2].State = "/health answers 503", "ejected"
	var got []string
	for _, n := range notices([]PoolView{v}, nil, 0) {
		got = append(got, n.Kind+": "+n.Detail)
	}
	want := []string{
		"ejected: Requests failed there. Probes and single trial requests find out when it can be used again. Last error: /health answers 503",
		"gone: It cannot be reached any more, or the server said that it is shutting down. Last error: scraping http://b:1/metrics: dial tcp: no such host",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestNeverReached: what was never there did not go away, and each cause is told.
func TestNeverReached(t *testing.T) {
	v := PoolView{Status: samplePools()[0]}
	v.Endpoints = nil
	for i, state := range []string{"unknown", "ejected", "gone"} {
		e := sampleEndpoint(fmt.Sprintf("a%d:1", i))
		e.State, e.Models, e.Cause, e.Heard = state, nil, []string{"no such host", "connection refused", "connection refused"}[i], false
		v.Endpoints = append(v.Endpoints, e)
	}
	list := notices([]PoolView{v}, nil, 0)
	if len(list) != 1 || list[0].Kind != "unreached" || len(list[0].Endpoints) != 3 || list[0].Title != "3 endpoints were never reached" ||
		list[0].Detail != "Nothing has answered there yet. Last errors: no such host; connection refused" {
		t.Errorf("got %+v", list)
	}
	if got := lastErrors([]string{"a", "b", "c", "d", "e"}); got != " Last errors: a; b; c; 2 more" {
		t.Errorf("of five: %q", got)
	}
}

// TestUnplaced: requests for which no pool could be found are nobody's traffic, but somebody's trouble.
func TestUnplaced(t *testing.T) {
	m := telemetry.New(telemetry.Build{})
	s := New(Config{Status: func() []pool.Status { return nil }, Traffic: m.Traffic})
	s.sample()
	for range minRequests {
		m.Done(&telemetry.Record{Outcome: telemetry.OutcomeClientError, CachedTokens: -1})
	}
	s.sample()
	if v := s.view(s.lately(), false); len(v.Notices) != 1 || v.Notices[0].Title != "20 requests of the last minute reached no pool" {
		t.Errorf("notices: %+v", v.Notices)
	}
	for range window + 1 {
		s.sample()
	}
	if v := s.view(s.lately(), false); len(v.Notices) != 0 {
		t.Errorf("a minute later: %+v", v.Notices)
	}
}

// BenchmarkStatus: a view of 100 endpoints as JSON, once per second and viewer; budget 2 ms.
func BenchmarkStatus(b *testing.B) {
	list := samplePools()[:1]
	list[0].Endpoints = nil
	for i := range 100 {
		list[0].Endpoints = append(list[0].Endpoints, sampleEndpoint(fmt.Sprintf("10.0.0.%d:8000", i)))
	}
	s := New(Config{Status: func() []pool.Status { return list }})
	s.sample()
	var buf bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		buf.Reset()
		if err := json.NewEncoder(&buf).Encode(s.view(s.lately(), false)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(buf.Len()), "bytes")
}

// A replica that does not learn of the picks is worth a notice, and says why.
func TestPeerNotices(t *testing.T) {
	well := telemetry.Peer{Address: "10.0.0.5:9091", State: telemetry.PeerConnected}
	if n := notices(nil, []telemetry.Peer{well}, 0); len(n) != 0 {
		t.Errorf("%+v", n)
	}
	n := notices(nil, []telemetry.Peer{well, {Address: "10.0.0.6:9091", State: telemetry.PeerConnecting, Error: "connection refused"}}, 0)
	if len(n) != 1 || n[0].Title != "1 of 2 other replicas do not learn of the picks made here" || n[0].Detail != "10.0.0.6:9091: connection refused." {
		t.Errorf("%+v", n)
	}
}

// A gateway without descriptors must say so itself: all that shows otherwise is endpoints that cannot be reached.
func TestDescriptorsNotice(t *testing.T) {
	for _, c := range []struct {
		open, most int
		want       bool
	}{{95, 100, true}, {100, 100, true}, {89, 100, false}, {0, 0, false}} {
		s := New(Config{Descriptors: func() (int, int) { return c.open, c.most }})
		var v View
		if err := json.Unmarshal(get(s, "GET", "/api/status").Body.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		said := len(v.Notices) > 0 && v.Notices[0].Kind == "descriptors" && v.Notices[0].Level == LevelError
		if said != c.want || v.Notices == nil {
			t.Errorf("%d of %d: %+v", c.open, c.most, v.Notices)
		}
	}
}

// A page that answers and stands still says so: nothing else would tell the operator why its report counts as stale.
func TestFrozenPageSaysWhy(t *testing.T) {
	v := PoolView{Status: samplePools()[0]}
	v.Endpoints = []pool.EndpointStatus{sampleEndpoint("a:1"), sampleEndpoint("b:1")}
	v.Endpoints[0].ReportStale, v.Endpoints[0].ReportAge = true, ptr(0.1)
	list := notices([]PoolView{v}, nil, 0)
	if len(list) != 1 || list[0].Kind != "stale_report" || !strings.Contains(list[0].Detail, "stand still") {
		t.Errorf("%+v", list)
	}
}
