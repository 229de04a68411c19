package vllmsim

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// fixture is a server in a bubble and a client of it.
type fixture struct {
	t      *testing.T
	s      *Server
	ln     *loopback.Pipes
	client *http.Client
	served chan error
	cancel context.CancelFunc
}

// bubble runs test against a server with cfg in a synctest bubble.
func bubble(t *testing.T, cfg Config, test func(*fixture)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ln := loopback.NewPipes()
		tr := &http.Transport{DialContext: ln.Dial, DisableCompression: true}
		ctx, cancel := context.WithCancel(t.Context())
		f := &fixture{t: t, s: s, ln: ln, client: &http.Client{Transport: tr}, served: make(chan error, 1), cancel: cancel}
		go func() { f.served <- s.Serve(ctx, ln) }()
		synctest.Wait()
		test(f)
		cancel()
		tr.CloseIdleConnections()
		time.Sleep(time.Minute) // every timer of the server has fired by then
	})
}

// stream is an open event stream.
type stream struct {
	resp   *http.Response
	cancel context.CancelFunc
	frames chan string // closed at the end
	err    error       // why it ended; io.EOF for a clean end
}

func (f *fixture) post(path, body string, header ...string) (*http.Response, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sim"+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.client.Do(req)
	return resp, cancel, err
}

// open starts a stream and reads its frames in the background.
func (f *fixture) open(path, body string, header ...string) *stream {
	f.t.Helper()
	resp, cancel, err := f.post(path, body, header...)
	if err != nil {
		f.t.Fatal(err)
	}
	st := &stream{resp: resp, cancel: cancel, frames: make(chan string, 100000)}
	go func() {
		defer close(st.frames)
		r := bufio.NewReader(resp.Body)
		for {
			line, err := r.ReadString('\n')
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				st.frames <- strings.TrimSuffix(data, "\n")
			}
			if err != nil {
				st.err = err
				return
			}
		}
	}()
	return st
}

// all waits for the end and returns the frames.
func (st *stream) all() (frames []string) {
	for fr := range st.frames {
		frames = append(frames, fr)
	}
	return frames
}

// call makes a request and returns its status and body.
func (f *fixture) call(path, body string, header ...string) (int, string) {
	f.t.Helper()
	resp, cancel, err := f.post(path, body, header...)
	if err != nil {
		f.t.Fatalf("POST %s: %v", path, err)
	}
	defer cancel()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatalf("POST %s: reading: %v", path, err)
	}
	return resp.StatusCode, string(b)
}

func (f *fixture) get(path string) (int, string) {
	f.t.Helper()
	resp, err := f.client.Get("http://sim" + path)
	if err != nil {
		f.t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// gauge reads one series of /metrics whose name and labels begin so.
func (f *fixture) gauge(name string) float64 {
	f.t.Helper()
	_, page := f.get("/metrics")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `(?:\{[^}]*\})? (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		f.t.Fatalf("no %s in the metrics page", name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *fixture) want(what string, got, want any) {
	f.t.Helper()
	if got != want {
		f.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// field extracts the number of a JSON field from a body.
func field(t *testing.T, body, name string) int {
	t.Helper()
	m := regexp.MustCompile(`"` + name + `":(\d+)`).FindStringSubmatch(body)
	if m == nil {
		t.Fatalf("no %q in %s", name, body)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// tiny is the recorded server: steps of about 3 ms.
func tiny() Config {
	cfg := recordedConfig("current")
	cfg.Speed = 1
	return cfg
}
