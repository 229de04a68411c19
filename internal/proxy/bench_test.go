package proxy

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/telemetry"
)

// benchBody is a chat request of about n bytes: turns of up to 2 kB of text.
func benchBody(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","max_tokens":64,"messages":[{"role":"system","content":"You are a helpful assistant."}`)
	for i := 0; b.Len() < n-400; i++ {
		fmt.Fprintf(&b, `,{"role":"user","content":"turn %d: %s"}`, i, bytes.Repeat([]byte("some words of a conversation, "), min(66, (n-b.Len())/40)))
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// benchEndpoint answers at once, as cheaply as it can.
func benchEndpoint() *httptest.Server {
	answer := []byte(okJSON)
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		h := w.Header()
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{fmt.Sprint(len(answer))}
		_, _ = w.Write(answer)
	}))
}

// sink takes what the access log writes: the work of writing it is part of the measurement.
type sink struct{}

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// cpu is the user and system time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// load sends n requests over conns connections and returns the latencies.
func load(tb testing.TB, to string, body []byte, n, conns int) []time.Duration {
	tr := &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns, DisableCompression: true}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	times := make([]time.Duration, n)
	var wg sync.WaitGroup
	for c := range conns {
		wg.Go(func() {
			for i := c; i < n; i += conns {
				begun := time.Now()
				res, err := client.Post(to+chat, "application/json", bytes.NewReader(body))
				if err != nil {
					tb.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 {
					tb.Errorf("status %d, %v", res.StatusCode, err)
					return
				}
				times[i] = time.Since(begun)
			}
		})
	}
	wg.Wait()
	slices.Sort(times)
	return times
}

// benchGateways starts everything that is switched on in production, and a bare ReverseProxy with the same transport.
func benchGateways(tb testing.TB) (full, bare, pooled, direct string) {
	ep := benchEndpoint()
	tb.Cleanup(ep.Close)
	r := newRig(tb, []string{ep.URL}, func(c *Config) {
		c.Access = telemetry.NewAccess(slog.New(slog.NewJSONHandler(sink{}, nil)))
	})
	target, err := url.Parse(ep.URL)
	if err != nil {
		tb.Fatal(err)
	}
	start := func(buffers httputil.BufferPool) string {
		b := httptest.NewServer(&httputil.ReverseProxy{
			Rewrite:    func(pr *httputil.ProxyRequest) { pr.SetURL(target); pr.SetXForwarded() },
			Transport:  NewTransport(TransportConfig{}),
			BufferPool: buffers,
		})
		tb.Cleanup(b.Close)
		return b.URL
	}
	return r.server.URL, start(nil), start(newCopyBuffers()), ep.URL
}

// BenchmarkProxyVsBare compares the CPU of one 4 KiB request with everything on (scan, hash, pick, ledger, metrics, access
// record) with that of a bare httputil.ReverseProxy on the same transport. Client and endpoint run in the same process:
// what they use is measured without a proxy and taken off both. Budget: ratio <= 1.15. ratio-pooled is against a
// ReverseProxy that was given a BufferPool, which a bare one lacks: it allocates 32 KiB per answer.
func BenchmarkProxyVsBare(b *testing.B) {
	full, bare, pooled, direct := benchGateways(b)
	body := benchBody(4 << 10)
	const batch, conns = 400, 8
	var used [4]time.Duration
	for _, to := range []string{full, bare, direct, pooled} {
		load(b, to, body, batch, conns) // warm
	}
	n := 0
	for b.Loop() {
		// Turn by turn, so that whatever else the machine does hits all alike.
		for i, to := range []string{full, bare, direct, pooled} {
			begun := cpu()
			load(b, to, body, batch, conns)
			used[i] += cpu() - begun
		}
		n += batch
	}
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(per(used[0]-used[2]), "us-cpu/request")
	b.ReportMetric(per(used[1]-used[2]), "us-cpu-bare/request")
	b.ReportMetric(per(used[2]), "us-cpu-client-and-endpoint/request")
	b.ReportMetric(float64(used[0]-used[2])/float64(used[1]-used[2]), "ratio")
	b.ReportMetric(float64(used[0]-used[2])/float64(used[3]-used[2]), "ratio-pooled")
}

// BenchmarkAddedLatency is the median that the gateway adds to a direct request, one at a time. Budgets: 4 KiB 0.15 ms,
// 128 KiB 0.35 ms, 2 MiB 2 ms.
func BenchmarkAddedLatency(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10, 2 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			full, bare, _, direct := benchGateways(b)
			body := benchBody(size)
			batch := max(20, min(200, 8<<20/size))
			var times [3][]time.Duration
			for b.Loop() {
				for i, to := range []string{full, bare, direct} {
					times[i] = append(times[i], load(b, to, body, batch, 1)...)
				}
			}
			p50 := func(i int) float64 {
				slices.Sort(times[i])
				return float64(times[i][len(times[i])/2].Microseconds()) / 1000
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(p50(0)-p50(2), "ms-added")
			b.ReportMetric(p50(1)-p50(2), "ms-added-bare")
			b.ReportMetric(p50(2), "ms-direct")
		})
	}
}
