package acceptance

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// phases of a restart: the processor serves, is being ended or gone, serves again.
const (
	serving int32 = iota
	leaving
	back
)

// restartLoad is clients behind an Envoy that ask one request after the other, every second one for a stream, and what becomes of each.
type restartLoad struct {
	base     string
	client   *http.Client
	phase    atomic.Int32
	open     atomic.Int32 // streams whose first bytes are there
	answered atomic.Int32 // of all requests, by whomever
	picked   atomic.Int32 // of these, by a model server that the processor picked
	mu       sync.Mutex
	fates    map[[2]int32]map[string]int // by the phases of begin and end
}

// ask sends request i and counts its fate under the phases in which it began and ended.
func (l *restartLoad) ask(i int) {
	stream := i%2 == 0
	begun := l.phase.Load()
	fate := l.fate(i, stream)
	l.answered.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	at := [2]int32{begun, l.phase.Load()}
	if l.fates[at] == nil {
		l.fates[at] = map[string]int{}
	}
	l.fates[at][fate]++
}

func (l *restartLoad) fate(i int, stream bool) string {
	tokens, more := 2, ""
	if stream {
		tokens, more = 60, `"stream":true,`
	}
	body := fmt.Sprintf(`{"model":"m","max_tokens":%d,"ignore_eos":true,%s"messages":[{"role":"user","content":%q}]}`, tokens, more, words(i, 200))
	res, err := l.client.Post(l.base+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return "no answer"
	}
	defer res.Body.Close()
	if res.Header.Get("x-pointsman-endpoint") != "" {
		l.picked.Add(1)
	}
	if stream && res.StatusCode == 200 {
		l.open.Add(1)
		defer l.open.Add(-1)
	}
	text, err := io.ReadAll(res.Body)
	switch {
	case res.StatusCode != 200:
		return fmt.Sprint(res.StatusCode, " ", res.Header.Get("x-pointsman-reason"))
	case err != nil:
		return "broken"
	case strings.Contains(string(text), `"error"`):
		return "error event"
	case stream && !strings.HasSuffix(string(text), "data: [DONE]\n\n"):
		return "cut without a word"
	}
	return "whole"
}

// only checks that every request that began in one of these phases had one of these fates.
func (l *restartLoad) only(t *testing.T, begun []int32, fates ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, seen := range l.fates {
		for fate := range seen {
			if slices.Contains(begun, at[0]) && !slices.Contains(fates, fate) {
				t.Errorf("begun in phase %d, ended in phase %d: %v, want %q only", at[0], at[1], seen, fates)
			}
		}
	}
}

// TestEnvoyRestartUnderLoad: a program that ends and starts again under load costs what its end and Envoy's failure_mode_allow say, and
// nothing is executed twice. docs/envoy.md has the table.
func TestEnvoyRestartUnderLoad(t *testing.T) {
	envoyPath(t)
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	whole := []string{"whole"}
	for _, c := range []struct {
		how      syscall.Signal
		open     bool
		mode     string   // of the request's body and of the answer's
		inFlight []string // what may become of requests that were sent before the signal
		away     []string // and of those sent until it is there again
	}{
		{syscall.SIGTERM, false, duplex, whole, []string{"whole", "500 "}},
		{syscall.SIGTERM, true, "BUFFERED/STREAMED", whole, whole},
		{syscall.SIGKILL, false, duplex, []string{"whole", "broken", "500 "}, []string{"whole", "500 "}},
		{syscall.SIGKILL, true, duplex, []string{"whole", "broken", "500 "}, []string{"whole", "500 "}},
		{syscall.SIGKILL, true, "BUFFERED/STREAMED", whole, whole},
	} {
		t.Run(fmt.Sprintf("%v/failure_mode_allow=%v/%s", c.how, c.open, c.mode), func(t *testing.T) {
			l := runRestart(t, bin, c.how, c.open, c.mode)
			l.only(t, []int32{back}, "whole")
			l.only(t, []int32{serving}, c.inFlight...)
			l.only(t, []int32{leaving}, append(c.away, "503 no_endpoint")...) // the new one says so until it knows one
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Logf("fates by the phases of begin and end: %v", l.fates)
			if n := l.fates[[2]int32{leaving, leaving}]["500 "]; (n > 0) != slices.Contains(c.away, "500 ") {
				t.Errorf("%d requests failed while it was away", n)
			}
		})
	}
}

const duplex = "FULL_DUPLEX_STREAMED/FULL_DUPLEX_STREAMED"

// runRestart ends the program by a signal and starts it again, under load.
func runRestart(t *testing.T, bin string, how syscall.Signal, open bool, mode string) *restartLoad {
	t.Helper()
	cfg := simConfig()
	cfg.Speed = 2
	sims, urls := simFleet(t, 2, cfg)
	port := envoyPort(t)
	yaml := "drain_delay: 100ms\ndrain: 20s\nextproc: {listen: \"127.0.0.1:" + port + "\"}\npools:\n  - {name: chat, " + list(urls...) + "}\n"
	p := serveBuilt(t, bin, yaml)
	p.settled(t, 2)
	request, response, _ := strings.Cut(mode, "/")
	trailers := "SEND"
	if mode != duplex {
		trailers = "SKIP"
	}
	base := envoy(t, urls, "127.0.0.1:"+port, "failure_mode_allow: false", fmt.Sprintf("failure_mode_allow: %v", open),
		"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+request, "response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: "+response,
		"request_trailer_mode: SEND", "request_trailer_mode: "+trailers, "response_trailer_mode: SEND", "response_trailer_mode: "+trailers)
	l := &restartLoad{base: base, client: client(t, 12), fates: map[[2]int32]map[string]int{}}
	var stop atomic.Bool
	var next atomic.Int32
	var clients sync.WaitGroup
	for range 12 {
		clients.Go(func() {
			for !stop.Load() {
				l.ask(int(next.Add(1)))
			}
		})
	}
	more := func(n int32, what string) {
		t.Helper()
		from := l.answered.Load()
		eventually(t, 30*time.Second, func() string { return unless(l.answered.Load() >= from+n, "no more answers "+what) })
	}
	more(30, "before")
	eventually(t, 10*time.Second, func() string { return unless(l.open.Load() >= 3, "no streams") })
	l.phase.Store(leaving)
	signal(t, p, how)
	if how == syscall.SIGTERM {
		exits(t, p)
	} else {
		_ = p.cmd.Wait()
	}
	more(30, "while it is away")
	before := l.picked.Load()
	p = serveBuilt(t, bin, yaml)
	p.settled(t, 2)
	eventually(t, 20*time.Second, func() string { return unless(l.picked.Load() > before, "not asked again") })
	l.phase.Store(back)
	more(60, "afterwards")
	stop.Store(true)
	clients.Wait()
	for _, s := range sims {
		for sum, n := range s.Stats().ByBody {
			if n > 1 {
				t.Errorf("a request was executed %d times: %s", n, sum)
			}
		}
	}
	return l
}
