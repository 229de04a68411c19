package telemetry

import (
	"log/slog"
	"testing"
	"time"
)

func sample() *Record {
	return &Record{
		ID: "01J9ZK3V7Q8M", Method: "POST", Path: "/v1/chat/completions", Model: "Org/Model-1.5", Served: "Org/Model-1.5", Pool: "chat",
		Endpoint: "10.0.0.3:8000", PickReason: "prefix", Outcome: OutcomeOK, Status: 200, Attempts: 1, Stream: true,
		PromptTokens: 5120, PredictedHit: 4096, CachedTokens: 4080, OutputTokens: 312,
		TTFT: 182 * time.Millisecond, Duration: 4210 * time.Millisecond, PickTime: 3200 * time.Nanosecond, BytesIn: 20480, BytesOut: 61234,
	}
}

// BenchmarkDone: budget 1 us and 0 allocations per request.
func BenchmarkDone(b *testing.B) {
	m := New(Build{})
	m.KnownModel(func(string) bool { return true })
	r := sample()
	b.ReportAllocs()
	for b.Loop() {
		m.Done(r)
	}
}

// BenchmarkDoneParallel is the same from every core at once: the counters are shared, no lock is. Budget: 1 us.
func BenchmarkDoneParallel(b *testing.B) {
	m := New(Build{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := sample()
		for pb.Next() {
			m.Done(r)
		}
	})
}

// BenchmarkPick: budget 0.5 us and 0 allocations.
func BenchmarkPick(b *testing.B) {
	m := New(Build{})
	b.ReportAllocs()
	for b.Loop() {
		m.Pick("chat", "prefix", 3*time.Microsecond)
		m.Attempt("chat", "10.0.0.3:8000", OutcomeOK)
	}
}

// BenchmarkAccess: budget 5 us and 5 allocations, all of them slog's.
func BenchmarkAccess(b *testing.B) {
	for name, h := range map[string]slog.Handler{
		"json": slog.NewJSONHandler(nowhere{}, nil), "text": slog.NewTextHandler(nowhere{}, nil),
	} {
		b.Run(name, func(b *testing.B) {
			a, r := NewAccess(slog.New(h)), sample()
			b.ReportAllocs()
			for b.Loop() {
				a.Log(r)
			}
		})
	}
}

// nowhere takes what handlers write: the rendering is what costs.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
