package vllmsim

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkStream is one chat stream of 100 tokens over loopback, the client included. Budget: 1 ms of CPU, or the simulator
// gets in the way of what it measures.
func BenchmarkStream(b *testing.B) {
	cfg := DefaultConfig()
	cfg.Profile = "instant"
	benchmark(b, cfg, `{"stream":true,"max_tokens":100,"messages":[{"role":"user","content":"hi"}]}`)
}

// BenchmarkWhole is one answer of one token to a prompt of 4 KiB. Budget: 0.5 ms of CPU.
func BenchmarkWhole(b *testing.B) {
	cfg := DefaultConfig()
	cfg.Profile = "instant"
	benchmark(b, cfg, `{"max_tokens":1,"messages":[{"role":"user","content":"`+strings.Repeat("word ", 800)+`"}]}`)
}

func benchmark(b *testing.B, cfg Config, body string) {
	_, addr := start(b, cfg, nil)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			resp, err := http.Post("http://"+addr+chatPath, "application/json", strings.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
}

// BenchmarkMetrics is one page; a gateway asks for five per second. Budget: 0.2 ms.
func BenchmarkMetrics(b *testing.B) {
	s, err := New(DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		if len(s.metricsBody()) == 0 {
			b.Fatal("empty page")
		}
	}
}

// BenchmarkNew is what one more endpoint costs. Budget: 5 ms and 4 MB, so that a fleet of 100 starts in half a second.
func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for i := range b.N {
		cfg := DefaultConfig()
		cfg.Model = []string{fmt.Sprint("m", i)}
		if _, err := New(cfg); err != nil {
			b.Fatal(err)
		}
	}
}
