package admin

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

func ptr[T any](v T) *T { return &v }

// sampleEndpoint is a healthy vLLM server with a bit of load.
func sampleEndpoint(name string) pool.EndpointStatus {
	return pool.EndpointStatus{
		Name: name, URL: "http://" + name, State: "ready", Engine: "vllm", Version: "0.12.0",
		InFlight: 9, Decoding: 8, Running: ptr(9), Waiting: ptr(0), MaxNumSeqs: 64,
		KVUsage: ptr(0.41), ProjectedKV: ptr(0.55), CapacityTokens: 307328, BlockSize: 16, MaxModelLen: 131072, PrefixCaching: ptr(true),
		HeldBlocks: 3120, HeldBytes: 798720, ReportAge: ptr(0.14), EngineHitRatio: ptr(0.76), ComputedHitRatio: ptr(0.71),
		Preemptions: ptr(0.0), Slowness: 1.04, Picks: 18234, Models: []string{"Org/Model-1.5"}, Heard: true,
	}
}

// samplePools is one pool of six endpoints, each with something to see, and a small second pool.
func samplePools() []pool.Status {
	list := make([]pool.EndpointStatus, 6)
	for i := range list {
		list[i] = sampleEndpoint(fmt.Sprintf("10.0.0.%d:8000", i+3))
	}
	list[1].Running, list[1].Waiting, list[1].KVUsage, list[1].ProjectedKV = ptr(31), ptr(3), ptr(0.83), ptr(0.97)
	list[2].Foreign, list[2].Running, list[2].Waiting = 5, ptr(14), ptr(0)
	list[3].State, list[3].ReportStale, list[3].ReportAge, list[3].ReportError = "ejected", true, ptr(41.0), "scraping 10.0.0.6:8000: connection refused"
	list[3].InFlight, list[3].Running, list[3].Waiting, list[3].KVUsage, list[3].ProjectedKV = 0, nil, nil, nil, nil
	list[4].State, list[4].InFlight, list[4].Running, list[4].KVUsage, list[4].ProjectedKV = "warming", 1, ptr(1), ptr(0.01), ptr(0.03)
	list[4].HeldBytes, list[4].HeldBlocks, list[4].EngineHitRatio, list[4].ComputedHitRatio = 0, 0, nil, nil
	list[5].State, list[5].Leaving, list[5].InFlight = "ready", true, 2
	embed := sampleEndpoint("10.0.1.9:8000")
	embed.InFlight, embed.Running, embed.KVUsage, embed.ProjectedKV, embed.Models = 0, ptr(0), ptr(0.0), ptr(0.0), []string{"Org/Embed-0.6"}
	return []pool.Status{
		{
			Name: "chat", Policy: "prefix", Configured: "auto", Ready: true, Endpoints: list,
			Models: []pool.Model{{ID: "Org/Model-1.5"}, {ID: "fast"}, {ID: "sql-adapter", Adapter: true}},
			Picks:  map[string]int64{"prefix": 900, "load": 300}, Full: map[string]int{"waiting": 1, "projected_kv": 1, "max_num_seqs": 0},
			InFlight: 30, Foreign: 5, BytesPerToken: 4,
		},
		{
			Name: "embed", Policy: "least_request", Configured: "least_request", Ready: true, Endpoints: []pool.EndpointStatus{embed},
			Warnings: []string{"policy is least_request, but prefix caching is on on 10.0.1.9:8000"},
			Models:   []pool.Model{{ID: "Org/Embed-0.6"}}, Full: map[string]int{}, BytesPerToken: 4,
		},
	}
}

func sampleExplanation() pool.Explanation {
	terms := func(wait, work, busy, stall, step float64) []pool.Term {
		return []pool.Term{{Name: "wait", Seconds: wait}, {Name: "work", Seconds: work}, {Name: "busy", Seconds: busy}, {Name: "stall", Seconds: stall}, {Name: "step", Seconds: step}}
	}
	gates := func(waiting, kv float64) []pool.Gate {
		return []pool.Gate{
			{Name: "waiting", Value: waiting, Threshold: 1, Applies: true, Passed: waiting < 1},
			{Name: "max_num_seqs", Value: 9, Threshold: 64, Applies: true, Passed: true},
			{Name: "projected_kv", Value: kv, Threshold: 0.95, Applies: true, Passed: kv <= 0.95},
		}
	}
	return pool.Explanation{
		ID: "01J9ZK3V7Q8M", Model: "Org/Model-1.5", Pool: "chat", AgeSeconds: 12.4, Policy: "prefix", Endpoint: "10.0.0.3:8000", Reason: "prefix",
		Cost: 0.1545, Prompt: 5120, Hit: 4096,
		Candidates: []pool.Candidate{
			{Endpoint: "10.0.0.3:8000", Hit: 4096, Gates: gates(0, 0.56), Terms: terms(0.012, 0.0655, 0.021, 0.036, 0.02), Cost: 0.1545, Chosen: true},
			{Endpoint: "10.0.0.4:8000", Hit: 0, Full: true, Gates: gates(3, 0.98), Terms: terms(0.31, 0.27, 0.09, 0.41, 0.05), Cost: 1.13},
			{Endpoint: "10.0.0.5:8000", Hit: 1024, Gates: gates(0, 0.62), Terms: terms(0.02, 0.21, 0.06, 0.33, 0.03), Cost: 0.65},
			{Endpoint: "10.0.0.6:8000", Skipped: "health", Gates: []pool.Gate{}, Terms: []pool.Term{}},
		},
	}
}

// TestPreview serves the dashboard with moving sample data, to look at while changing it:
//
//	POINTSMAN_PREVIEW=127.0.0.1:9099 go test ./internal/admin -run Preview -timeout 0
func TestPreview(t *testing.T) {
	addr := os.Getenv("POINTSMAN_PREVIEW")
	if addr == "" {
		t.Skip("POINTSMAN_PREVIEW is not set")
	}
	p := &preview{pools: samplePools(), metrics: telemetry.New(telemetry.Build{Version: "0.1.0"})}
	p.metrics.CollectPools(p.status)
	s := New(Config{
		Metrics: p.metrics.Handler(), Status: p.status, Traffic: p.metrics.Traffic, Version: "0.1.0",
		Explain: func(string) (any, bool) { return sampleExplanation(), true },
	})
	go p.move(t)
	p.backfill(s)
	go s.Run(t.Context())
	t.Logf("the dashboard is at http://%s/", addr)
	t.Fatal(http.ListenAndServe(addr, s))
}

type preview struct {
	mu      sync.Mutex
	pools   []pool.Status
	metrics *telemetry.Metrics
	tick    float64
}

func (p *preview) status() []pool.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]pool.Status, len(p.pools))
	for i, s := range p.pools {
		out[i] = s
		out[i].Endpoints = append([]pool.EndpointStatus(nil), s.Endpoints...)
	}
	return out
}

func (p *preview) backfill(s *Server) {
	for range points {
		p.second()
		s.sample()
	}
}

func (p *preview) move(t *testing.T) {
	for ticker := time.NewTicker(step); ; {
		select {
		case <-t.Context().Done():
			return
		case <-ticker.C:
			p.second()
		}
	}
}

// second is one second of traffic: a slow wave with noise.
func (p *preview) second() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tick++
	wave := 1 + 0.5*math.Sin(p.tick/25) + 0.15*rand.Float64()
	for range int(32 * wave) {
		hit := int(4000 * rand.Float64())
		p.metrics.Pick("chat", []string{"prefix", "prefix", "prefix", "prefix", "load", "load", "all_full"}[rand.IntN(7)], time.Duration(2000+rand.IntN(3000)))
		p.metrics.Done(&telemetry.Record{Model: "Org/Model-1.5", Pool: "chat", Outcome: "ok", PromptTokens: 4300, PredictedHit: hit + 200, CachedTokens: hit,
			OutputTokens: 60 + rand.IntN(80), TTFT: time.Duration(wave * (80 + 260*rand.ExpFloat64()) * 1e6), Duration: 4 * time.Second})
	}
	for i := range p.pools[0].Endpoints[:3] {
		ep := &p.pools[0].Endpoints[i]
		ep.InFlight = int(wave * float64(8+3*i+rand.IntN(4)))
		ep.Running = ptr(ep.InFlight + ep.Foreign)
		ep.ReportAge = ptr(0.2 * rand.Float64())
		kv := min(0.97, wave*(0.33+0.12*float64(i)))
		ep.KVUsage, ep.ProjectedKV = ptr(kv), ptr(kv+0.09)
	}
	p.pools[0].InFlight = 0
	for _, ep := range p.pools[0].Endpoints {
		p.pools[0].InFlight += ep.InFlight
	}
}
