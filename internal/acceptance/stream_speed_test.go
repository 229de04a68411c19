package acceptance

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// haproxyConf passes streams on without holding events back; everything else is the default.
const haproxyConf = `global
    maxconn 4000
defaults
    mode http
    option http-no-delay
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend api
    bind %s
    default_backend engines
backend engines
    server a %s
`

// startHAProxy runs HAProxy, found in $HAPROXY or the path, in front of target.
func startHAProxy(t *testing.T, target string) *process {
	t.Helper()
	bin := os.Getenv("HAPROXY")
	if bin == "" {
		bin = "haproxy"
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	conf := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(conf, fmt.Appendf(nil, haproxyConf, addr, strings.TrimPrefix(target, "http://")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-db", "-f", conf)
	if err := cmd.Start(); err != nil {
		t.Skipf("HAProxy is the measure of this test (test/bench-http installs it): %v", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	eventually(t, patience, func() string {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err.Error()
		}
		c.Close()
		return ""
	})
	return &process{cmd: cmd, url: "http://" + addr}
}

// streamRow is what is known of one program in front of the event source.
type streamRow struct {
	name             string
	at               *process
	direct           bool
	paced, flat      []float64 // seconds of processor time per million events
	delay50, delay99 []float64 // added between the source and the client, milliseconds
	gap50, gap99     []float64 // of the time between two events, milliseconds
	rate             []float64 // events per second, flat out
}

const (
	pacedStreams = 200
	pacedEvents  = 250 // of each stream, at 50 per second
	flatStreams  = 16
	flatEvents   = 64_000 // of each stream
)

// TestStreamSpeed compares the gateway with HAProxy and with a bare reverse proxy on streams, in turns within one run, each a
// process of its own between the same source and the same clients. Budgets: processor time per event at most 1.5 of
// HAProxy's, paced and flat out; the 99th percentile of the time between two events at most 0.5 ms above the direct path's.
// It takes part in `make bench-http` only.
func TestStreamSpeed(t *testing.T) {
	if os.Getenv("POINTSMAN_BENCH") == "" {
		t.Skip("set POINTSMAN_BENCH=1, or run make bench-http")
	}
	rounds := 5
	if n, err := strconv.Atoi(os.Getenv("COUNT")); err == nil {
		rounds = n
	}
	source := startRole(t, "events", "")
	ours, _ := startGateway(t, source.url)
	rows := []*streamRow{{name: "direct", at: source, direct: true}, {name: "haproxy", at: startHAProxy(t, source.url)},
		{name: "bare", at: startRole(t, "bare", source.url)}, {name: "pointsman", at: ours}}
	for range rounds {
		for _, r := range rows {
			r.measurePaced(t)
		}
		for _, r := range rows {
			r.measureFlat(t)
		}
	}
	direct, haproxy, gateway := rows[0], rows[1], rows[3]
	t.Logf("%-10s %22s %22s %24s %24s %12s", "", "CPU s/million, paced", "CPU s/million, flat", "added delay p50/p99 ms", "added gap p50/p99 ms", "flat events/s")
	for _, r := range rows {
		t.Logf("%-10s %14.1f (x%.2f) %14.2f (x%.2f) %17.3f/%.3f %17.3f/%.3f %14.0f", r.name, median(r.paced), median(r.paced)/median(haproxy.paced), median(r.flat), median(r.flat)/median(haproxy.flat),
			median(r.delay50)-median(direct.delay50), median(r.delay99)-median(direct.delay99), median(r.gap50)-median(direct.gap50), median(r.gap99)-median(direct.gap99), median(r.rate))
		fmt.Printf("BenchmarkStreams/paced_%s 1 %.2f s-cpu/million-events %.3f p50-delay-ms %.3f p99-delay-ms %.3f p99-gap-ms\nBenchmarkStreams/flat_%s 1 %.3f s-cpu/million-events %.0f events/s\n",
			r.name, median(r.paced), median(r.delay50), median(r.delay99), median(r.gap99), r.name, median(r.flat), median(r.rate))
	}
	if ratio := median(gateway.paced) / median(haproxy.paced); ratio > 1.5 {
		t.Errorf("paced: CPU per event %.2f of HAProxy's, budget 1.5", ratio)
	}
	if ratio := median(gateway.flat) / median(haproxy.flat); ratio > 1.5 {
		t.Errorf("flat out: CPU per event %.2f of HAProxy's, budget 1.5", ratio)
	}
	if added := median(gateway.gap99) - median(direct.gap99); added > 0.5 {
		t.Errorf("added inter-token p99 %.3f ms, budget 0.5 ms", added)
	}
}

func (r *streamRow) measurePaced(t *testing.T) {
	t.Helper()
	before := cpu(t, r.at)
	got, err := readAllEvents(r.at.url, "", pacedStreams, pacedEvents, true)
	if err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	r.paced = append(r.paced, (cpu(t, r.at)-before).Seconds()/(pacedStreams*pacedEvents)*1e6)
	slices.Sort(got.delays)
	slices.Sort(got.gaps)
	r.delay50, r.delay99 = append(r.delay50, part(got.delays, 50)), append(r.delay99, part(got.delays, 99))
	r.gap50, r.gap99 = append(r.gap50, part(got.gaps, 50)), append(r.gap99, part(got.gaps, 99))
}

func (r *streamRow) measureFlat(t *testing.T) {
	t.Helper()
	before, begun := cpu(t, r.at), time.Now()
	if _, err := readAllEvents(r.at.url, "&flat", flatStreams, flatEvents, false); err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	r.rate = append(r.rate, flatStreams*flatEvents/time.Since(begun).Seconds())
	r.flat = append(r.flat, (cpu(t, r.at)-before).Seconds()/(flatStreams*flatEvents)*1e6)
}

// part is a percentile of sorted times in milliseconds.
func part(sorted []time.Duration, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(len(sorted)-1, len(sorted)*percent/100)]) / 1e6
}
