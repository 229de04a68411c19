package scrape

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"pointsman.dev/pointsman/internal/pool"
)

func TestPageWithoutKnownSeriesIsAnError(t *testing.T) {
	for name, body := range map[string]string{
		"empty":          "",
		"json":           `[{"iter": 1, "gpuMemUsage": 12}]`,
		"html":           "<!doctype html><html><body>hello vllm:num_requests_running 3</body></html>",
		"another server": "process_start_time_seconds 1.7e9\ngo_goroutines 12\n",
		"comments":       "# HELP vllm:num_requests_running n\n# TYPE vllm:num_requests_running gauge\n",
		"only malformed": "vllm:num_requests_running{engine=\"0\" 3\n",
	} {
		if err := NewPage().Parse([]byte(body)); !errors.Is(err, ErrNoSeries) {
			t.Errorf("%s: got error %v, want ErrNoSeries", name, err)
		}
	}
}

func TestMissingIsUnknownNotZero(t *testing.T) {
	p := NewPage()
	if err := p.Parse([]byte("vllm:num_requests_running 0\n")); err != nil {
		t.Fatal(err)
	}
	r := p.Report()
	if r.Running != 0 || r.Waiting != pool.Unknown || r.KVUsage != pool.Unknown || r.PrefixCaching != nil {
		t.Errorf("running %v waiting %v kv %v caching %v, want 0, unknown, unknown, nil", r.Running, r.Waiting, r.KVUsage, r.PrefixCaching)
	}
}

func TestNewNameWinsOverOld(t *testing.T) {
	p := NewPage()
	page := "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\nvllm:prefix_cache_hits_total 5\nvllm:gpu_prefix_cache_hits_total 7\n"
	if err := p.Parse([]byte(page)); err != nil {
		t.Fatal(err)
	}
	if r := p.Report(); r.KVUsage != 0.1 || r.Hits != 5 {
		t.Errorf("kv %v hits %v, want 0.1 and 5", r.KVUsage, r.Hits)
	}
}

func TestManyRanksStayBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		b.WriteString("vllm:num_requests_running{engine=\"")
		b.WriteString(strings.Repeat("x", i%7))
		b.WriteString(string(rune('a' + i%26)))
		b.WriteString(string(rune('a' + i/26%26)))
		b.WriteString("\"} 1\n")
	}
	p := NewPage()
	if err := p.Parse([]byte(b.String())); err != nil {
		t.Fatal(err)
	}
	if r := p.Report(); r.Ranks != maxRanks || r.Skipped == 0 {
		t.Errorf("ranks %d skipped %d, want %d and more than 0", r.Ranks, r.Skipped, maxRanks)
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	body := recorded(t, "vllm-0.32.0-03-during-20-concurrent.txt")
	p := NewPage()
	if err := p.Parse(body); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() { _ = p.Parse(body) }); n != 0 {
		t.Errorf("%v allocations per page, want 0", n)
	}
}

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata/pages", name))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// The oracle: where Prometheus' own parser takes a page, both read the same numbers.
func FuzzParse(f *testing.F) {
	pages, err := filepath.Glob("testdata/pages/*.txt")
	if err != nil || len(pages) == 0 {
		f.Fatalf("found no pages: %v", err)
	}
	for _, path := range pages {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(body) > 8000 { // the head of a page says enough to start from
			body = body[:bytes.LastIndexByte(body[:8000], '\n')+1]
		}
		f.Add(body)
	}
	f.Add([]byte("vllm:num_requests_running { engine = \"a\\\"}\" , } 3e0 17\n\tvllm:num_requests_waiting 2\n"))
	p := NewPage()
	f.Fuzz(func(t *testing.T, body []byte) {
		err := p.Parse(body)
		r := p.Report()
		checkSane(t, &r)
		if err != nil || r.Skipped > 0 || bytes.ContainsAny(body, "\r") {
			return
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
		if err != nil {
			return
		}
		same(t, families, "vllm:num_requests_running", "vllm:", r.Running)
		same(t, families, "vllm:num_requests_waiting", "vllm:", r.Waiting)
	})
}

// checkSane holds for every page whatsoever.
func checkSane(t *testing.T, r *pool.Report) {
	t.Helper()
	for name, v := range map[string]float64{"running": r.Running, "waiting": r.Waiting, "capacity": r.WaitingCapacity,
		"deferred": r.WaitingDeferred, "blocks": r.NumBlocks, "tokens": r.CapacityTokens, "window": r.MaxModelLen,
		"queries": r.Queries, "hits": r.Hits, "start": r.ProcessStart, "prompt": r.PromptTokens, "block size": r.BlockSize} {
		if v != pool.Unknown && !(v >= 0 && !math.IsInf(v, 0)) {
			t.Errorf("%s is %v", name, v)
		}
	}
	if r.KVUsage != pool.Unknown && !(r.KVUsage >= 0 && r.KVUsage <= 1) {
		t.Errorf("kv usage is %v", r.KVUsage)
	}
	if r.Ranks < 1 || r.Ranks > maxRanks {
		t.Errorf("%d ranks", r.Ranks)
	}
}

// same compares one gauge, summed over ranks, with the oracle's reading of it, where only this engine is on the page.
func same(t *testing.T, families map[string]*dto.MetricFamily, name, prefix string, got float64) {
	t.Helper()
	byRank := map[string]float64{}
	for n, f := range families {
		if strings.HasPrefix(n, "sglang:") || strings.HasPrefix(n, "llamacpp:") || strings.HasPrefix(n, "t") ||
			strings.HasPrefix(n, "nv_") || strings.HasPrefix(n, name+"_by") {
			return
		}
		if n != name || !strings.HasPrefix(n, prefix) {
			continue
		}
		for _, m := range f.GetMetric() {
			v, ok := number(m)
			if !ok {
				return
			}
			rank := rankLabel(m)
			if old, seen := byRank[rank]; !seen || v > old {
				byRank[rank] = v
			}
		}
	}
	want := float64(pool.Unknown)
	for _, v := range byRank {
		want = max(want, 0) + v
	}
	if len(byRank) <= maxRanks && math.Abs(want-got) > 1e-6*math.Abs(want) {
		t.Errorf("%s is %v, the oracle reads %v", name, got, want)
	}
}

func rankLabel(m *dto.Metric) string {
	for _, want := range []string{"engine", "dp_rank"} {
		for _, l := range m.GetLabel() {
			if l.GetName() == want {
				return want + "=" + l.GetValue()
			}
		}
	}
	return ""
}

func number(m *dto.Metric) (float64, bool) {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue(), true
	case m.Counter != nil:
		return m.Counter.GetValue(), true
	case m.Untyped != nil:
		return m.Untyped.GetValue(), true
	}
	return 0, false
}

// BenchmarkParse: a page of 73 kB every 200 ms from each of 100 endpoints must cost a few percent of one core, that
// is <= 100 us each.
func BenchmarkParse(b *testing.B) {
	body := recorded(b, "vllm-0.32.0-03-during-20-concurrent.txt")
	p := NewPage()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Parse(body); err != nil {
			b.Fatal(err)
		}
	}
}
