package telemetry

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"pointsman.dev/pointsman/internal/pool"
)

var update = flag.Bool("update", false, "write the generated page docs/metrics.md anew")

func ptr[T any](v T) *T { return &v }

func endpoint(name, state string) pool.EndpointStatus {
	return pool.EndpointStatus{Name: name, State: state, InFlight: 4, Foreign: 2, Running: ptr(6), Waiting: ptr(1), KVUsage: ptr(0.5), ProjectedKV: ptr(0.625),
		HeldBytes: 4000, ReportAge: ptr(0.25), EngineHitRatio: ptr(0.75), ComputedHitRatio: ptr(0.7), PrefixCaching: ptr(true)}
}

// full returns Metrics in which every series of the table exists.
func full() *Metrics {
	m := New(Build{Version: "1.2.3", Revision: "abcdef"})
	m.KnownModel(func(name string) bool { return name == "Org/Model-1.5" })
	m.CollectPools(func() []pool.Status {
		return []pool.Status{{Name: "chat", Configured: "auto", Policy: "prefix", Endpoints: []pool.EndpointStatus{endpoint("10.0.0.3:8000", "ready")},
			Full: map[string]int{"waiting": 1}, BytesPerToken: 4, Queue: pool.QueueStatus{Waiting: 3, Held: 2, Shed: map[string]int64{"queue_full": 5}}}}
	})
	m.CollectDraining(func() int { return 0 })
	m.NewPeers(func() map[string]int { return map[string]int{PeerConnected: 2} })
	r := sample()
	r.Window, r.Estimate = WindowResent, 4000
	m.Done(r)
	m.Pick("chat", "prefix", 3*time.Microsecond)
	m.Attempt("chat", "10.0.0.3:8000", OutcomeOK)
	m.Waited("chat", 300*time.Millisecond)
	return m
}

// page scrapes m over HTTP and parses the text with Prometheus's own parser.
func page(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatalf("parsing the page: %v", err)
	}
	return families
}

// value finds the series of a family with the label values in the order of the table.
func value(families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	f := families[name]
	for _, s := range f.GetMetric() {
		got := map[string]string{}
		for _, l := range s.GetLabel() {
			got[l.GetName()] = l.GetValue()
		}
		match := true
		for i, l := range definition(name).Labels {
			match = match && got[l] == labels[i]
		}
		if match {
			return s.GetCounter().GetValue() + s.GetGauge().GetValue() + float64(s.GetHistogram().GetSampleCount())
		}
	}
	return math.NaN()
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(full().Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestNames holds the names and labels that users, alerts and dashboards rely on.
func TestNames(t *testing.T) {
	want := map[string]string{
		"pointsman_requests_total":                    "model pool outcome",
		"pointsman_attempts_total":                    "pool endpoint outcome",
		"pointsman_in_flight_requests":                "pool endpoint",
		"pointsman_endpoint_state":                    "pool endpoint state",
		"pointsman_endpoint_report_age_seconds":       "pool endpoint",
		"pointsman_endpoint_running":                  "pool endpoint",
		"pointsman_endpoint_waiting":                  "pool endpoint",
		"pointsman_endpoint_kv_usage_ratio":           "pool endpoint",
		"pointsman_endpoint_projected_kv_ratio":       "pool endpoint",
		"pointsman_endpoint_foreign_requests":         "pool endpoint",
		"pointsman_full_endpoints":                    "pool gate",
		"pointsman_picks_total":                       "pool reason",
		"pointsman_queued_requests":                   "pool",
		"pointsman_held_requests":                     "pool",
		"pointsman_queue_wait_seconds":                "pool",
		"pointsman_shed_requests_total":               "pool reason",
		"pointsman_pick_seconds":                      "pool",
		"pointsman_time_to_first_token_seconds":       "model pool",
		"pointsman_request_seconds":                   "model pool",
		"pointsman_prompt_tokens_total":               "model pool",
		"pointsman_prefix_predicted_hit_tokens_total": "model pool",
		"pointsman_prefix_actual_hit_tokens_total":    "model pool",
		"pointsman_generated_tokens_total":            "model pool",
		"pointsman_endpoint_hit_ratio":                "pool endpoint kind",
		"pointsman_client_retries_total":              "model pool reached",
		"pointsman_wasted_tokens_total":               "model pool reason",
		"pointsman_window_requests_total":             "model pool how",
		"pointsman_prompt_estimate_ratio":             "pool",
		"pointsman_draining_requests":                 "",
		"pointsman_peer_in_flight_requests":           "pool endpoint",
		"pointsman_peers":                             "state",
		"pointsman_peer_lag_seconds":                  "",
		"pointsman_peer_batches_total":                "result",
		"pointsman_peer_bytes_total":                  "direction",
		"pointsman_peer_full_states_total":            "direction",
		"pointsman_peer_refused_total":                "",
		"pointsman_lost_access_records_total":         "",
		"pointsman_build_info":                        "version revision go_version",
	}
	families := page(t, full())
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got := strings.Join(definition(name).Labels, " "); got != want[name] {
			t.Errorf("%s has the labels %q, want %q", name, got, want[name])
		}
	}
	for _, d := range Definitions() {
		f := families[d.Name]
		if f == nil {
			t.Errorf("%s is in the table, but not on the page", d.Name)
			continue
		}
		if f.GetHelp() != d.Help || strings.ToLower(f.GetType().String()) != string(d.Kind) {
			t.Errorf("%s: page says %s %q", d.Name, f.GetType(), f.GetHelp())
		}
	}
	for name := range families {
		ours := strings.HasPrefix(name, "pointsman_")
		if ours && !slices.ContainsFunc(Definitions(), func(d Definition) bool { return d.Name == name }) {
			t.Errorf("%s is on the page, but not in the table", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if families[name] == nil {
			t.Errorf("%s is missing: runtime and process are part of the page", name)
		}
	}
}

func TestDoneCounts(t *testing.T) {
	m := full()
	r := sample()
	r.Outcome, r.CachedTokens, r.TTFT = OutcomeCut, -1, 0
	m.Done(r)
	f := page(t, m)
	for _, c := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{1, nameRequests, []string{"Org/Model-1.5", "chat", "ok"}},
		{1, nameRequests, []string{"Org/Model-1.5", "chat", "cut"}},
		{0, nameRequests, []string{"Org/Model-1.5", "chat", "timeout"}},
		{2, nameRequestSeconds, []string{"Org/Model-1.5", "chat"}},
		{1, nameTTFT, []string{"Org/Model-1.5", "chat"}},
		{10240, namePromptTokens, []string{"Org/Model-1.5", "chat"}},
		{8192, namePredictedHit, []string{"Org/Model-1.5", "chat"}},
		{4080, nameActualHit, []string{"Org/Model-1.5", "chat"}},
		{5120, nameActualPrompt, []string{"Org/Model-1.5", "chat"}},
		{624, nameGenerated, []string{"Org/Model-1.5", "chat"}},
		{1, namePicks, []string{"chat", "prefix"}},
		{1, namePickSeconds, []string{"chat"}},
		{1, nameAttempts, []string{"chat", "10.0.0.3:8000", "ok"}},
		{3, nameQueued, []string{"chat"}},
		{2, nameHeldRequests, []string{"chat"}},
		{5, nameShed, []string{"chat", "queue_full"}},
		{1, nameQueueSeconds, []string{"chat"}},
	} {
		if got := value(f, c.name, c.labels...); got != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}

func TestLabelsAreBounded(t *testing.T) {
	m := full()
	for i := range 5000 {
		r := sample()
		r.Model, r.Outcome = fmt.Sprintf("made-up-%d\xff", i), "no-such-outcome"
		m.Done(r)
		m.Attempt("chat", fmt.Sprintf("10.%d.%d.1:80", i/256, i%256), OutcomeOK)
		m.Pick("chat", "no-reason-"+fmt.Sprint(i), time.Microsecond)
	}
	f := page(t, m)
	if got := value(f, nameRequests, Other, "chat", Other); got != 5000 {
		t.Errorf("%v requests of unknown models under %s, want 5000", got, Other)
	}
	for _, name := range []string{nameRequests, nameAttempts, namePicks} {
		if n := len(f[name].GetMetric()); n > maxHandles+len(Outcomes())+2 {
			t.Errorf("%s has %d series", name, n)
		}
	}
}

// TestModelKnownLater: a name must not stay folded when its adapter was loaded after the first request for it.
func TestModelKnownLater(t *testing.T) {
	m, known := New(Build{}), false
	m.KnownModel(func(string) bool { return known })
	m.Done(&Record{Model: "late", Pool: "p", Outcome: OutcomeClientError, CachedTokens: -1})
	known = true
	m.Done(&Record{Model: "late", Pool: "p", Outcome: OutcomeOK, CachedTokens: -1})
	f := page(t, m)
	if a, b := value(f, nameRequests, Other, "p", OutcomeClientError), value(f, nameRequests, "late", "p", OutcomeOK); a != 1 || b != 1 {
		t.Errorf("folded %v, named %v, want 1 and 1", a, b)
	}
}

func TestGauges(t *testing.T) {
	unknown := pool.EndpointStatus{Name: "b:1", State: "unknown"}
	old, again := endpoint("c:1", "draining"), endpoint("c:1", "ready")
	old.Leaving, old.InFlight = true, 3
	m := New(Build{})
	m.CollectPools(func() []pool.Status {
		return []pool.Status{
			{Name: "chat", Configured: "least_request", AllStale: true, Endpoints: []pool.EndpointStatus{endpoint("a:1", "ready"), unknown, old, again},
				Full: map[string]int{"projected_kv": 2}, BytesPerToken: 4},
			{Name: "chat"}, // a name twice must not break the page
		}
	})
	f := page(t, m)
	for _, c := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{4, nameInFlight, []string{"chat", "a:1"}},
		{1, nameState, []string{"chat", "a:1", "ready"}},
		{0, nameState, []string{"chat", "a:1", "ejected"}},
		{6, nameRunning, []string{"chat", "a:1"}},
		{1, nameWaiting, []string{"chat", "a:1"}},
		{0.5, nameKV, []string{"chat", "a:1"}},
		{0.625, nameProjectedKV, []string{"chat", "a:1"}},
		{2, nameForeign, []string{"chat", "a:1"}},
		{0.75, nameHitRatio, []string{"chat", "a:1", "engine"}},
		{0.7, nameHitRatio, []string{"chat", "a:1", "computed"}},
		{1000, nameHeld, []string{"chat", "a:1"}},
		{0.25, nameReportAge, []string{"chat", "a:1"}},
		{0, nameInFlight, []string{"chat", "b:1"}},
		{math.NaN(), nameRunning, []string{"chat", "b:1"}},
		{math.NaN(), nameReportAge, []string{"chat", "b:1"}},
		{7, nameInFlight, []string{"chat", "c:1"}},
		{1, nameState, []string{"chat", "c:1", "ready"}},
		{2, nameFullEndpoints, []string{"chat", "projected_kv"}},
		{0, nameFullEndpoints, []string{"chat", "waiting"}},
		{1, nameReportsStale, []string{"chat"}},
		{1, nameContradiction, []string{"chat"}},
	} {
		got := value(f, c.name, c.labels...)
		if got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s%v is %v, want %v (NaN: absent)", c.name, c.labels, got, c.want)
		}
	}
}

func TestSeriesOfGoneEndpointsAreDropped(t *testing.T) {
	m, now := New(Build{}), time.Unix(1000, 0)
	m.pools.now = func() time.Time { return now }
	list := []pool.EndpointStatus{endpoint("a:1", "ready"), endpoint("b:1", "ready")}
	m.CollectPools(func() []pool.Status { return []pool.Status{{Name: "p", Endpoints: list}} })
	m.Attempt("p", "a:1", OutcomeOK)
	m.Attempt("p", "b:1", OutcomeOK)
	page(t, m)
	list = list[:1]
	now = now.Add(forgetAfter / 2)
	if got := value(page(t, m), nameAttempts, "p", "b:1", OutcomeOK); got != 1 {
		t.Errorf("soon after it left: %v, want its last count", got)
	}
	now = now.Add(forgetAfter)
	page(t, m) // this scrape forgets
	f := page(t, m)
	if got := value(f, nameAttempts, "p", "b:1", OutcomeOK); !math.IsNaN(got) {
		t.Errorf("long after it left: still %v", got)
	}
	if got := value(f, nameAttempts, "p", "a:1", OutcomeOK); got != 1 {
		t.Errorf("the endpoint that stayed has %v, want 1", got)
	}
	m.Attempt("p", "b:1", OutcomeOK)
	if got := value(page(t, m), nameAttempts, "p", "b:1", OutcomeOK); got != 1 {
		t.Errorf("after it came back: %v, want 1", got)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	m, r := full(), sample()
	if n := testing.AllocsPerRun(100, func() {
		m.Done(r)
		m.Pick("chat", "prefix", time.Microsecond)
		m.Attempt("chat", "10.0.0.3:8000", OutcomeOK)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestTraffic(t *testing.T) {
	m := New(Build{})
	before := m.trafficOf("p").Snapshot()
	for i := range 100 {
		m.Done(&Record{Model: "m", Pool: "p", Outcome: OutcomeOK, PromptTokens: 100, PredictedHit: 60, CachedTokens: 50, OutputTokens: 7,
			TTFT: time.Duration(i+1) * 10 * time.Millisecond})
	}
	m.Done(&Record{Model: "m", Pool: "p", Outcome: OutcomeTimeout, CachedTokens: -1})
	m.Done(&Record{Model: "m", Pool: "p", Outcome: OutcomeClientError, CachedTokens: -1})
	m.Pick("p", "all_full", 2*time.Microsecond)
	s := m.Traffic()["p"]
	if s.Requests != 102 || s.Failed != 1 || s.PromptTokens != 10000 || s.PredictedHit != 6000 || s.ActualHit != 5000 || s.ActualPrompt != 10000 ||
		s.OutputTokens != 700 || s.Picks != 1 || s.Reasons["all_full"] != 1 {
		t.Errorf("totals: %+v", s)
	}
	d := s.TTFT.Sub(before.TTFT)
	for q, want := range map[float64]float64{0.5: 0.5, 0.95: 0.95, 1: 1} {
		if got, ok := d.Quantile(q); !ok || math.Abs(got/want-1) > 0.2 {
			t.Errorf("quantile %v is %v s, want %v s within a quarter octave", q, got, want)
		}
	}
	if _, ok := (TTFT{}).Quantile(0.5); ok {
		t.Error("a quantile of nothing")
	}
}

func TestAccessRecord(t *testing.T) {
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	var b bytes.Buffer
	a := NewAccess(slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{ReplaceAttr: plain})))
	a.Log(sample())
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"level": "INFO", "msg": "request", "request_id": "01J9ZK3V7Q8M", "method": "POST", "path": "/v1/chat/completions", "model": "Org/Model-1.5",
		"pool": "chat", "endpoint": "10.0.0.3:8000", "pick_reason": "prefix", "outcome": "ok", "status": 200.0, "stream": true, "prompt_tokens": 5120.0,
		"predicted_hit_tokens": 4096.0, "actual_hit_tokens": 4080.0, "output_tokens": 312.0, "bytes_in": 20480.0, "bytes_out": 61234.0,
		"pick_seconds": 0.000003, "ttft_seconds": 0.182, "duration_seconds": 4.21,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	b.Reset()
	a = NewAccess(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: plain})))
	a.Log(&Record{ID: "x", Path: "/v1/chat/completions", Model: "nope", Outcome: OutcomeClientError, Status: 404, ErrorReason: "unknown_model",
		CachedTokens: -1, Duration: 900 * time.Microsecond})
	const line = "level=INFO msg=request request_id=x path=/v1/chat/completions model=nope served_model=\"\" outcome=client_error status=404 " +
		"error_reason=unknown_model stream=false attempts=0 bytes_in=0 bytes_out=0 duration_seconds=0.0009\n"
	if got := b.String(); got != strings.ReplaceAll(line, "served_model=\"\" ", "") {
		t.Errorf("got  %swant %s", got, line)
	}
	NewAccess(nil).Log(sample()) // off
}

// TestAccessKeepsNothing: records of different shapes do not leak into each other through the reused slice.
func TestAccessKeepsNothing(t *testing.T) {
	var b bytes.Buffer
	a := NewAccess(slog.New(slog.NewTextHandler(&b, nil)))
	a.Log(sample())
	b.Reset()
	a.Log(&Record{ID: "y", Outcome: OutcomeNoEndpoint, CachedTokens: -1})
	if strings.Contains(b.String(), "10.0.0.3") || strings.Contains(b.String(), "tokens") {
		t.Error(b.String())
	}
}

// TestMetricsPage fails when docs/metrics.md is stale; `go test ./internal/telemetry -update` writes it.
func TestMetricsPage(t *testing.T) {
	const path = "../../docs/metrics.md"
	want := Markdown()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/metrics.md is stale: run go test ./internal/telemetry -update\n%s", diff)
	}
}
