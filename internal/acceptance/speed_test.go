package acceptance

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// atOnce is how many of the tests that allow it run at once, at least: as many as processors would wait for one another.
const atOnce = 6

// TestMain lets the test binary be the other processes of a measurement: a bare reverse proxy and a model server that
// answers at once. Each prints its address and runs until its standard input closes.
func TestMain(m *testing.M) {
	switch os.Getenv("POINTSMAN_ROLE") {
	case "":
		flag.Parse()
		if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil && n < atOnce { // parallel tests wait more than they compute
			_ = flag.Set("test.parallel", strconv.Itoa(atOnce))
		}
		code := m.Run()
		removePrograms()
		os.Exit(code)
	case "server":
		role(http.HandlerFunc(instantServer))
	case "events":
		role(eventSource(&pacer{gap: 20 * time.Millisecond}))
	case "bare":
		role(bareProxy(os.Getenv("POINTSMAN_TARGET")))
	case "awake":
		stayAwake()
	}
}

func role(h http.Handler) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ln.Addr())
	go func() { io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	log.Fatal(http.Serve(ln, h))
}

// stayAwake spins at the lowest priority. A virtual processor that has nothing to do halts, and waking it takes some 60 us: most
// of what a round trip on an idle machine measures, and none of it the gateway's.
func stayAwake() {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19); err != nil {
		log.Fatal(err)
	}
	fmt.Println("awake")
	go func() { io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	for n := uint64(0); ; n++ {
		if n == math.MaxUint64 {
			return
		}
	}
}

func instantServer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metrics":
		fmt.Fprintf(w, idlePage, 0)
	case "/v1/models":
		io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","max_model_len":131072}]}`)
	default:
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21}}`)
	}
}

// bareProxy is what net/http gives for nothing: httputil.ReverseProxy with the transport that the gateway uses.
func bareProxy(target string) http.Handler {
	u, err := url.Parse(target)
	if err != nil {
		log.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.SetXForwarded() },
		Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
			WriteBufferSize: 64 << 10, ReadBufferSize: 16 << 10},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
}

// process is a child that prints its address first.
type process struct {
	cmd *exec.Cmd
	url string
	end func()
}

func startRole(t *testing.T, name, target string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "POINTSMAN_ROLE="+name, "POINTSMAN_TARGET="+target)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() { in.Close(); cmd.Wait() })
	t.Cleanup(end)
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return &process{cmd, "http://" + strings.TrimSpace(string(line[:n])), end}
}

// startGateway builds the program and runs `pointsman serve` in front of the target, as a user does.
func startGateway(t *testing.T, targets ...string) (p *process, admin string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	args := []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, u := range targets {
		args = append(args, "--endpoint", u)
	}
	cmd := exec.Command(bin, args...)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(os.Interrupt); cmd.Wait(); stderr.Close() })
	eventually(t, patience, func() string {
		raw, _ := os.ReadFile(stderr.Name())
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, "msg=listening") {
				api, adm := field(line, "api="), field(line, "admin=")
				p, admin = &process{cmd: cmd, url: "http://" + api}, "http://"+adm
				return ""
			}
		}
		return "no listening line: " + string(raw)
	})
	eventually(t, patience, func() string {
		r, err := http.Get(admin + "/readyz")
		if err != nil {
			return err.Error()
		}
		r.Body.Close()
		if r.StatusCode != 200 {
			return r.Status
		}
		return ""
	})
	return p, admin
}

func field(line, key string) string {
	_, rest, _ := strings.Cut(line, key)
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return strings.Trim(value, `"`)
}

// cpu is the processor time that a process has used, user and system, in 10 ms ticks as the kernel counts.
func cpu(t *testing.T, p *process) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Skipf("reading a process's time: %v", err)
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// load sends n equal requests over width connections and returns their times, sorted.
func load(t *testing.T, c *http.Client, url string, body []byte, n, width int) []time.Duration {
	t.Helper()
	times := make([]time.Duration, n)
	parallel(n, width, func(i int) {
		start := time.Now()
		req, _ := http.NewRequestWithContext(context.Background(), "POST", url+"/v1/chat/completions", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		r, err := c.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
			t.Errorf("status %d, %v", r.StatusCode, err)
		}
		r.Body.Close()
		times[i] = time.Since(start)
	})
	slices.Sort(times)
	return times
}

func chatOf(size int) []byte {
	const head, tail = `{"model":"m","max_tokens":4,"messages":[{"role":"system","content":"`, `"}]}`
	return []byte(head + words(1, size-len(head)-len(tail)) + tail)
}

// TestSpeed compares the gateway with a bare reverse proxy and with the direct path, in one run, in turns, in separate
// processes. Budgets: CPU per 4 KiB request at most 1.15 of the bare proxy's; added latency (p50 against direct) at most
// 0.15 ms at 4 KiB, 0.35 ms at 128 KiB, 2 ms at 2 MiB, on processors that are awake (those of an idle machine are printed too). It takes part in `make bench` only: a machine that does other
// work at the same time would make it fail for nothing.
func TestSpeed(t *testing.T) {
	if os.Getenv("POINTSMAN_BENCH") == "" {
		t.Skip("set POINTSMAN_BENCH=1, or run make bench")
	}
	server := startRole(t, "server", "")
	bare := startRole(t, "bare", server.url)
	ours, _ := startGateway(t, server.url)
	c := client(t, 32)

	var bareCPU, oursCPU []float64
	body := chatOf(4 << 10)
	load(t, c, bare.url, body, 2000, 16)
	load(t, c, ours.url, body, 2000, 16)
	const n = 6000
	for range 7 {
		before := cpu(t, bare)
		load(t, c, bare.url, body, n, 16)
		bareCPU = append(bareCPU, float64(cpu(t, bare)-before)/n/1e3)
		before = cpu(t, ours)
		load(t, c, ours.url, body, n, 16)
		oursCPU = append(oursCPU, float64(cpu(t, ours)-before)/n/1e3)
	}
	ratio := median(oursCPU) / median(bareCPU)
	fmt.Printf("BenchmarkGatewayCPU/bare_4KiB 1 %.1f us-cpu/req\nBenchmarkGatewayCPU/pointsman_4KiB 1 %.1f us-cpu/req\n", median(bareCPU), median(oursCPU))
	t.Logf("CPU per 4 KiB request: bare %.1f us, pointsman %.1f us, ratio %.3f (budget 1.15)", median(bareCPU), median(oursCPU), ratio)
	if ratio > 1.15 {
		t.Errorf("CPU ratio %.3f, budget 1.15", ratio)
	}
	for _, s := range []struct {
		name   string
		size   int
		n      int
		budget time.Duration
	}{{"4KiB", 4 << 10, 1500, 150 * time.Microsecond}, {"128KiB", 128 << 10, 600, 350 * time.Microsecond}, {"2MiB", 2 << 20, 80, 2 * time.Millisecond}} {
		addedLatency(t, c, server.url, bare.url, ours.url, s.name+"_idle_machine", chatOf(s.size), s.n, 0)
		var awake []*process
		for range runtime.NumCPU() {
			awake = append(awake, startRole(t, "awake", ""))
		}
		addedLatency(t, c, server.url, bare.url, ours.url, s.name, chatOf(s.size), s.n, s.budget)
		for _, p := range awake {
			p.end()
		}
	}
}

func addedLatency(t *testing.T, c *http.Client, direct, bare, ours, name string, body []byte, n int, budget time.Duration) {
	t.Helper()
	var d, b, o []float64
	for range 5 {
		d = append(d, float64(load(t, c, direct, body, n, 1)[n/2]))
		b = append(b, float64(load(t, c, bare, body, n, 1)[n/2]))
		o = append(o, float64(load(t, c, ours, body, n, 1)[n/2]))
	}
	added := time.Duration(median(o) - median(d))
	fmt.Printf("BenchmarkGatewayLatency/direct_%s 1 %.0f p50-ns\nBenchmarkGatewayLatency/bare_%s 1 %.0f p50-ns\nBenchmarkGatewayLatency/pointsman_%s 1 %.0f p50-ns\n",
		name, median(d), name, median(b), name, median(o))
	t.Logf("%s: direct %v, bare %v, pointsman %v, added %v (budget %v)", name, time.Duration(median(d)), time.Duration(median(b)), time.Duration(median(o)), added, budget)
	if budget > 0 && added > budget {
		t.Errorf("%s: added latency %v, budget %v", name, added, budget)
	}
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
