package llmapi

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// A recording is one recorded exchange with a real vLLM server.
type recording struct {
	name     string // version/stem
	method   string
	path     string
	reqBody  []byte
	status   int
	sse      bool
	respBody []byte
}

// recordings reads all exchanges in testdata, in a stable order.
func recordings(t testing.TB) []recording {
	t.Helper()
	var out []recording
	for _, pattern := range []string{"testdata/*/http/*.response.http", "testdata/*/http/*/*.response.http"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			out = append(out, readRecording(t, strings.TrimSuffix(f, ".response.http")))
		}
	}
	if len(out) < 100 {
		t.Fatalf("found %d recordings, want at least 100", len(out))
	}
	return out
}

func readRecording(t testing.TB, stem string) recording {
	t.Helper()
	r := recording{name: strings.Replace(strings.TrimPrefix(stem, "testdata/"), "/http/", "/", 1)}
	raw, err := os.ReadFile(stem + ".request.http")
	if err == nil {
		head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
		line, _, _ := bytes.Cut(head, []byte("\r\n"))
		if parts := strings.Fields(string(line)); len(parts) > 1 {
			r.method, r.path = parts[0], strings.Split(parts[1], "?")[0]
		}
		r.reqBody = body
	}
	raw, err = os.ReadFile(stem + ".response.http")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), &http.Request{Method: r.method})
	if err != nil {
		return r // a recorded answer to malformed HTTP
	}
	r.status = resp.StatusCode
	r.sse = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	r.respBody, err = io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // some recordings are shortened
		t.Fatalf("%s: %v", stem, err)
	}
	return r
}

// golden compares text with a file, line by line.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(string(raw), "\n")
	for i, line := range strings.Split(got, "\n") {
		if i >= len(want) || line != want[i] {
			w := "nothing"
			if i < len(want) {
				w = want[i]
			}
			t.Errorf("%s:%d:\n got %s\nwant %s", path, i+1, line, w)
		}
	}
	if n := strings.Count(got, "\n"); n < len(want)-1 {
		t.Errorf("%s: %d lines, want %d", path, n, len(want)-1)
	}
}
