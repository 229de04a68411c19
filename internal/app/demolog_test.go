package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/sim/trace"
)

// The demo's access records can be replayed with their prefixes, and hold no text of prompts.
func TestDemoAccessLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "access.jsonl")
	var out, errs bytes.Buffer
	if code := Demo(t.Context(), []string{"--duration", "3s", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--access-log", name}, &out, &errs); code != 0 {
		t.Fatalf("code %d: %s%s", code, out.String(), errs.String())
	}
	tr, err := trace.Open(name, "demo")
	if err != nil {
		t.Fatal(err)
	}
	if tr.Requests < 5 || tr.Prefixes < tr.Requests*9/10 || tr.Unknown > tr.Requests/2 {
		t.Errorf("%d requests, %d with prefixes, %d whose answers are not known", tr.Requests, tr.Prefixes, tr.Unknown)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), `"messages"`) || strings.Contains(string(data), `"content"`) {
		t.Error("the records hold text of requests")
	}
}
