package acceptance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The crowd: 1,500 requests at once, of which 200 are of the kind that holds on to things.
const (
	readers  = 1300 // streams whose clients read
	controls = 50   // streams straight from the source: what they suffer is the machine's
	idlers   = 100  // streams whose clients never read, of a source that sends as fast as it can
	mutes    = 50   // requests to an endpoint that reads and never answers
	deafs    = 50   // requests of 2 MiB to an endpoint that never reads
	crowdGap = 500 * time.Millisecond

	crowdBudget  = 200_000_000 // resident above idle while all run, bodies apart
	returnBudget = 40_000_000  // resident above the start when all have ended: what `explain` remembers of the picks, and used code
)

// modelServer serves one model; post answers whatever asks it for work.
func modelServer(t *testing.T, model string, post http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","max_model_len":4194304}]}`, model)
		case r.Method == http.MethodGet:
			instantServer(w, r)
		default:
			post(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// TestCrowd: with 1,500 requests in flight, among them clients that never read, an endpoint that never reads and one that never
// answers, the streams of the others flow, the probes are answered, memory is bounded, and afterwards everything is as before.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and measures the program")
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Max < 8192 {
		t.Skipf("needs 8,192 descriptors (ulimit -Hn): %d, %v", files.Max, err)
	}
	source := &pacer{gap: crowdGap}
	good := modelServer(t, "m", eventSource(source).ServeHTTP)
	mute := modelServer(t, "mute", func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() })
	never := make(chan struct{})
	deaf := modelServer(t, "deaf", func(http.ResponseWriter, *http.Request) { <-never })
	t.Cleanup(func() { close(never) }) // before the server's own
	p := serveFile(t, fmt.Sprintf("limit: 10m\npools:\n  - {name: good, endpoints: [%s]}\n  - {name: mute, endpoints: [%s]}\n  - {name: deaf, endpoints: [%s]}\n",
		good.URL, mute.URL, deaf.URL))
	of := &process{cmd: p.cmd, url: p.api}
	eventually(t, patience, func() string {
		if _, err := readEvents(p.api, "", 1, true); err != nil {
			return err.Error()
		}
		return ""
	})
	steady(t, of)
	before := p.gauges(t)

	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	control := startRole(t, "server", "")
	probed, elsewhere := probe(ctx, &all, p.admin), probe(ctx, &all, control.url)
	for range idlers {
		all.Go(func() { holdUnread(ctx, t, p.api) })
	}
	for range mutes {
		all.Go(func() { ask(ctx, p.api, "mute", "hello") })
	}
	read, direct := readCrowd(t, p.api, readers), readCrowd(t, good.URL, controls)
	p.inFlight(t, readers+idlers+mutes)
	crowd := steady(t, of)
	within(t, fmt.Sprintf("crowd_%d_above_idle", readers+idlers+mutes), crowd-int64(before["process_resident_memory_bytes"]), crowdBudget)
	resetPeak(t, of)
	text := words(1, 2<<20)
	for range deafs {
		all.Go(func() { ask(ctx, p.api, "deaf", text) })
	}
	p.inFlight(t, readers+idlers+mutes+deafs)
	steady(t, of)
	within(t, "crowd_50x2MiB_peak_above", memory(t, of.cmd.Process.Pid, "VmHWM")-crowd, bodyBudget)

	source.over.Store(true)
	source.over.Store(true)
	compare(t, "delay of an event against its stream's rhythm", late((<-read).gaps), late((<-direct).gaps), crowdGap/5)
	leave()
	all.Wait()
	compare(t, "/healthz", <-probed, <-elsewhere, 200*time.Millisecond)
	p.backTo(t, before)
}

// readCrowd has n clients read streams until the source ends them.
func readCrowd(t *testing.T, base string, n int) <-chan reading {
	out := make(chan reading, 1)
	go func() {
		got, err := readAllEvents(base, "", n, 1_000_000, true)
		if err != nil {
			t.Error(err)
		}
		out <- got
	}()
	return out
}

// compare holds the 99th percentile of what the gateway's clients saw to a budget, or where the machine is too busy for that, to
// five times what a control saw that did without the gateway at the same time: a process that has little to do gets a
// processor sooner than one that serves a crowd.
func compare(t *testing.T, what string, got, control []time.Duration, budget time.Duration) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(control)
	t.Logf("%s, %d times: p50 %.1f ms, p99 %.1f ms; without the gateway, %d times: p50 %.1f ms, p99 %.1f ms",
		what, len(got), part(got, 50), part(got, 99), len(control), part(control, 50), part(control, 99))
	if most := max(5*part(control, 99), float64(budget.Milliseconds())); part(got, 99) > most || len(got) < 100 {
		t.Errorf("%s: p99 %.0f ms of %d, budget %.0f ms", what, part(got, 99), len(got), most)
	}
}

// late is how much longer than the source's rhythm the times between events were.
func late(gaps []time.Duration) []time.Duration {
	out := make([]time.Duration, len(gaps))
	for i, g := range gaps {
		out[i] = max(0, g-crowdGap)
	}
	return out
}

// probe asks for /healthz every 20 ms until ctx ends and then gives the times.
func probe(ctx context.Context, all *sync.WaitGroup, base string) <-chan []time.Duration {
	out := make(chan []time.Duration, 1)
	all.Go(func() {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		var times []time.Duration
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			begun := time.Now()
			r, err := c.Get(base + "/healthz")
			if err != nil || r.StatusCode != http.StatusOK {
				times = append(times, time.Hour)
			} else {
				times = append(times, time.Since(begun))
			}
			if err == nil {
				r.Body.Close()
			}
			<-tick.C
		}
		out <- times
	})
	return out
}

// holdUnread asks for a stream that sends as fast as it can, and reads nothing of it until ctx ends.
func holdUnread(ctx context.Context, t *testing.T, api string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(api, "http://"))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	const body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	fmt.Fprintf(conn, "POST /v1/chat/completions?flat&events=100000000 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-ctx.Done()
}

// ask sends a request that nobody will answer; it ends with ctx.
func ask(ctx context.Context, api, model, text string) {
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if r, err := c.Do(req); err == nil {
		r.Body.Close()
	}
}

// gauges reads the plain gauges of /metrics; those in flight are summed over the endpoints.
func (p *program) gauges(t *testing.T) map[string]float64 {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	out := map[string]float64{}
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		if v, err := strconv.ParseFloat(value, 64); err == nil && (name == "go_goroutines" || name == "process_open_fds" || name == "process_resident_memory_bytes") {
			out[name] = v
		} else if _, last, ok := strings.Cut(s.Text(), "} "); ok && name == "pointsman_in_flight_requests" {
			v, _ := strconv.ParseFloat(last, 64)
			out[name] += v
		}
	}
	return out
}

func (p *program) inFlight(t *testing.T, n float64) {
	t.Helper()
	eventually(t, patience, func() string {
		if now := p.gauges(t)["pointsman_in_flight_requests"]; now != n {
			return fmt.Sprintf("%v requests are in flight, want %v", now, n)
		}
		return ""
	})
}

// backTo waits until nothing of a crowd is left: connections to endpoints are kept for 4 s.
func (p *program) backTo(t *testing.T, before map[string]float64) {
	t.Helper()
	var now map[string]float64
	begun := time.Now()
	eventually(t, patience, func() string {
		now = p.gauges(t)
		for name, slack := range map[string]float64{"go_goroutines": 20, "process_open_fds": 10, "pointsman_in_flight_requests": 0, "process_resident_memory_bytes": returnBudget} {
			if now[name] > before[name]+slack {
				return fmt.Sprintf("%s is %.0f, was %.0f", name, now[name], before[name])
			}
		}
		return ""
	})
	t.Logf("after %v: goroutines %.0f (before %.0f), descriptors %.0f (%.0f), resident %.1f MB (%.1f MB)", time.Since(begun).Round(time.Millisecond), now["go_goroutines"],
		before["go_goroutines"], now["process_open_fds"], before["process_open_fds"], now["process_resident_memory_bytes"]/1e6, before["process_resident_memory_bytes"]/1e6)
}
