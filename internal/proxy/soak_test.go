package proxy

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/pace"
)

// descriptors counts the open files of this process; -1 where that cannot be told.
func descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(list)
}

// TestAbortsLeaveNothing runs 1,000 requests that their clients abort at random points, 100 that the endpoint resets and
// 100 that meet a closed port. Within a second everything that counts what is in flight is at 0 again, and goroutines and
// descriptors are back where they were.
func TestAbortsLeaveNothing(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		if !sleepOr(r, time.Duration(rand.IntN(3000))*time.Microsecond) {
			return
		}
		if r.Header.Get("x-reset") != "" {
			reset(w)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if !bytes.Contains(body, []byte(`"stream":true`)) {
			answerOK(w, r)
			return
		}
		for range 20 {
			answerStream(w, delta("some words"))
			if !sleepOr(r, 200*time.Microsecond) {
				return
			}
		}
		answerStream(w, finishStop, doneEvent)
	}
	a, b := newEndpoint(t, slow), newEndpoint(t, slow)
	r := newRig(t, []string{a.URL, b.URL})
	dead := newRig(t, []string{closedPort(t)})
	if _, err := read(r.post(chat, chatBody)); err != nil { // starts what starts once
		t.Fatal(err)
	}
	runtime.GC()
	goroutines, files := runtime.NumGoroutine(), descriptors()

	tr := &http.Transport{MaxIdleConnsPerHost: 20}
	client := &http.Client{Transport: tr}
	big := strings.Replace(chatBody, "hello", strings.Repeat("many words ", 50_000), 1)
	send := func(rig *rig, abortAfter time.Duration, header string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		body := [...]string{chatBody, streamBody, big}[rand.IntN(3)]
		req, err := http.NewRequestWithContext(ctx, "POST", rig.server.URL+chat, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		if header != "" {
			req.Header.Set(header, "1")
		}
		if abortAfter > 0 {
			defer time.AfterFunc(abortAfter, cancel).Stop()
		}
		if res, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 50 {
				send(r, time.Duration(1+rand.IntN(8000))*time.Microsecond, "")
			}
			for range 5 {
				send(r, 0, "x-reset")
				send(dead, 0, "")
			}
		})
	}
	wg.Wait()
	ended := pace.Start(t)
	r.idle()
	dead.idle()
	if took := ended.Elapsed(); took > time.Second {
		t.Errorf("in-flight gauges took %v to return to 0", took)
	}
	tr.CloseIdleConnections()
	r.proxy.CloseIdle()
	r.server.CloseClientConnections()
	dead.server.CloseClientConnections()
	waitFor(t, "goroutines and descriptors back", func() bool {
		return runtime.NumGoroutine() <= goroutines && (files < 0 || descriptors() <= files)
	})
	outcomes := map[string]int{}
	for _, rig := range []*rig{r, dead} {
		for range len(rig.records) {
			outcomes[(<-rig.records)["outcome"]]++
		}
	}
	if outcomes["no_endpoint"] != 100 || outcomes["client_cancelled"] == 0 || outcomes["upstream_error"] == 0 {
		t.Errorf("outcomes %v", outcomes)
	}
	t.Logf("outcomes %v; executed %d + %d", outcomes, a.served.Load(), b.served.Load())
}

// rss is the resident memory of this process in bytes.
func rss(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc/self/statm here")
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// TestLargeBodiesInFlight: 50 bodies of 2 MiB that wait for their engines cost at most 60 MB of resident memory, clients
// and endpoints of this test included, and go back when they are done.
func TestLargeBodiesInFlight(t *testing.T) {
	if raceDetector {
		t.Skip("its memory and its speed are not those of the product: dials time out on a machine that does other work too")
	}
	release := make(chan struct{})
	ep := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-release
		answerOK(w, r)
	}))
	t.Cleanup(ep.Close)
	r := newRig(t, []string{ep.URL})
	body := string(benchBody(2 << 20))
	runtime.GC()
	before := rss(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			res, err := http.Post(r.server.URL+chat, "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := read(res); err != nil || res.StatusCode != 200 {
				t.Errorf("status %d, %v, %s", res.StatusCode, err, text)
			}
		})
	}
	deadline := time.Now().Add(patience)
	for r.inFlight() < 50 && time.Now().Before(deadline) {
		pause(time.Millisecond)
	}
	if n := r.inFlight(); n != 50 {
		t.Errorf("%d in flight, want 50", n)
		for range len(r.records) {
			t.Log(<-r.records)
		}
	}
	grown := rss(t) - before
	if memory := r.proxy.bodies.Used(); memory > r.proxy.cfg.BodyMemory+50*connBuffer {
		t.Errorf("bodies hold %d bytes of memory, the budget is %d", memory, r.proxy.cfg.BodyMemory)
	}
	close(release)
	wg.Wait()
	r.idle()
	t.Logf("50 bodies of 2 MiB in flight: %d MB resident above idle", grown/1e6)
	if grown > 60e6 && !raceDetector {
		t.Errorf("50 bodies of 2 MiB in flight cost %d MB of resident memory, want at most 60", grown/1e6)
	}
}
