package acceptance

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Memory of the real program, as the kernel counts it: resident bytes of the process of `pointsman serve`.
const (
	idleBudget  = 30_000_000 // resident when nothing happens
	bodyBudget  = 60_000_000 // above idle, with 50 bodies of 2 MiB in flight
	indexBudget = 20_000_000 // above idle, after 100 MB of unique prompts
)

// holder is a model server without a model: it reads a request, or refuses to, and answers when it is told to.
type holder struct {
	*httptest.Server
	stall   atomic.Bool // leave the body unread until the release
	inside  atomic.Int64
	mu      sync.Mutex
	release chan struct{}
}

func newHolder(t *testing.T) *holder {
	h := &holder{release: make(chan struct{})}
	h.Server = httptest.NewServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.Close)
	return h
}

func (h *holder) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		instantServer(w, r)
		return
	}
	if !h.stall.Load() {
		io.Copy(io.Discard, r.Body)
	}
	h.mu.Lock()
	release := h.release
	h.mu.Unlock()
	h.inside.Add(1)
	select {
	case <-release:
	case <-r.Context().Done():
	}
	h.inside.Add(-1)
	instantServer(w, r)
}

// let answers everything that is held, and holds what comes later.
func (h *holder) let() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.release)
	h.release = make(chan struct{})
}

// memory returns one line of /proc/PID/status in bytes: VmRSS is resident now, VmHWM the most that ever was.
func memory(t *testing.T, pid int, line string) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("reading a process's memory: %v", err)
	}
	_, rest, ok := strings.Cut(string(raw), line+":")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 || fields[1] != "kB" {
		t.Skipf("this system does not say %s", line)
	}
	kB, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kB << 10
}

// resetPeak makes VmHWM start again from what is resident now.
func resetPeak(t *testing.T, p *process) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0); err != nil {
		t.Skipf("resetting the peak: %v", err)
	}
}

// steady waits until the peak has not risen for a second by more than the small change of polling, and returns what is
// resident then.
func steady(t *testing.T, p *process) int64 {
	t.Helper()
	peak, since := memory(t, p.cmd.Process.Pid, "VmHWM"), time.Now()
	eventually(t, patience, func() string {
		if now := memory(t, p.cmd.Process.Pid, "VmHWM"); now-peak > 512<<10 {
			peak, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return "the memory still grows"
		}
		return ""
	})
	return memory(t, p.cmd.Process.Pid, "VmRSS")
}

// within reports a measurement in benchstat's format and compares it with its budget.
func within(t *testing.T, name string, bytes, budget int64) {
	t.Helper()
	fmt.Printf("BenchmarkGatewayMemory/%s 1 %.1f MB\n", name, float64(bytes)/1e6)
	t.Logf("%s: %.1f MB (budget %.0f MB)", name, float64(bytes)/1e6, float64(budget)/1e6)
	if bytes > budget {
		t.Errorf("%s: %.1f MB, budget %.0f MB", name, float64(bytes)/1e6, float64(budget)/1e6)
	}
}

// TestMemoryOfBodies: idle, then 50 bodies of 2 MiB at once, first with an engine that has read them and thinks, then with
// one that does not read. The peak counts, not only what is left when all have arrived.
func TestMemoryOfBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and measures the program")
	}
	h := newHolder(t)
	p, _ := startGateway(t, h.URL)
	idle := steady(t, p)
	within(t, "idle", idle, idleBudget)

	const bodies = 50
	c := client(t, bodies)
	for _, stall := range []bool{false, true} {
		name := map[bool]string{false: "50x2MiB_read", true: "50x2MiB_unread"}[stall]
		h.stall.Store(stall)
		resetPeak(t, p)
		var sent sync.WaitGroup
		for i := range bodies {
			sent.Go(func() { postUnique(t, c, p.url, i, 2<<20) })
		}
		eventually(t, patience, func() string {
			if n := h.inside.Load(); n != bodies && !t.Failed() {
				return fmt.Sprintf("%d of %d requests are with the engine", n, bodies)
			}
			return ""
		})
		now := steady(t, p)
		within(t, name+"_above_idle", now-idle, bodyBudget)
		within(t, name+"_peak_above_idle", memory(t, p.cmd.Process.Pid, "VmHWM")-idle, bodyBudget)
		h.let()
		sent.Wait()
	}
}

// postUnique sends a chat of about so many bytes that shares no prefix with that of another number, and reads the answer.
func postUnique(t *testing.T, c *http.Client, url string, i, size int) {
	if t.Failed() {
		return
	}
	body := []byte(`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"` + words(i, size-100) + `"}]}`)
	r, err := c.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Body.Close()
	if answer, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("status %d, %v: %.200s", r.StatusCode, err, answer)
	}
}

// TestMemoryOfIndex: 100 MB of unique prompts, in requests of 40 kB over four endpoints, and what is resident after them.
func TestMemoryOfIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and measures the program")
	}
	var urls []string
	for range 4 {
		s := httptest.NewServer(http.HandlerFunc(instantServer))
		t.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	p, _ := startGateway(t, urls...)
	c := client(t, 4)
	unique := func(n, first int) {
		parallel(n, 4, func(i int) { postUnique(t, c, p.url, first+i, 40_000) })
	}
	idle := steady(t, p)
	unique(2500, 0)
	within(t, "index_100MB_unique", steady(t, p)-idle, indexBudget)
	unique(2500, 2500)
	within(t, "index_200MB_unique", steady(t, p)-idle, indexBudget)
}
