package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

// TestOutcomesThatAnOperatorMustSee: with log.level warn an outage is still in the log, and a client's mistake is not.
func TestOutcomesThatAnOperatorMustSee(t *testing.T) {
	want := map[string]bool{
		OutcomeUpstreamError: true, OutcomeCut: true, OutcomeTimeout: true, OutcomeShed: true, OutcomeNoEndpoint: true,
		OutcomeOK: false, OutcomeClientError: false, OutcomeClientCancelled: false, OutcomeTooLong: false,
	}
	for _, outcome := range Outcomes() {
		var b bytes.Buffer
		a := NewAccess(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn})))
		a.Log(&Record{ID: "x", Outcome: outcome, CachedTokens: -1})
		seen, known := want[outcome]
		if !known || strings.Contains(b.String(), "level=WARN") != seen {
			t.Errorf("%s: got %q at level warn, want it there: %v", outcome, b.String(), seen)
		}
	}
}

// TestUnknownPath: what clients call is told, without what must not be in a log.
func TestUnknownPath(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"", ""},
		{"/api/chat", "/api/chat"},
		{"/v1/chat/completions/", "/v1/chat/completions/"},
		{"/v1beta/models/gemini:generate", "/v1beta/models/gemini:generate"},
		{"/v1/v1/chat/completions", "/v1/v1/chat/completions"},
		{"/v1/x%3Fapi_key=secret", "/v1/x..."},
		{"/v1/x;key=secret", "/v1/x..."},
		{"/a%0alevel=ERROR", "/a..."},
		{"/a\nlevel=ERROR msg=fake", "/a..."},
		{"/a\x1b[2J", "/a..."},
		{"/ä", "/..."},
		{"/v1/sk-1/x", "/v1/*/x"},
		{"/v1/6fbd24a9e1c84f6bb1d0a3f5/models", "/v1/*/models"},
		{"/" + strings.Repeat("a", 100), "/" + strings.Repeat("a", 63) + "..."},
		{"*", "..."},
	} {
		if got := harmless(c.path); got != c.want {
			t.Errorf("%q: %q, want %q", c.path, got, c.want)
		}
	}
	var b bytes.Buffer
	NewAccess(slog.New(slog.NewTextHandler(&b, nil))).Log(&Record{ID: "x", UnknownPath: "/api/chat", Outcome: OutcomeClientError, CachedTokens: -1})
	if !strings.Contains(b.String(), " unknown_path=/api/chat ") {
		t.Error(b.String())
	}
}

// noRoom is a disk without room.
type noRoom struct{}

func (noRoom) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestLostRecords: a record that cannot be written is counted, so that its absence can be told from the absence of requests.
func TestLostRecords(t *testing.T) {
	m := New(Build{})
	for _, w := range []io.Writer{noRoom{}, io.Discard} {
		NewAccess(slog.New(slog.NewTextHandler(w, nil))).CountLost(m).Log(&Record{ID: "r", Outcome: OutcomeOK})
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(w.Body.String(), "\npointsman_lost_access_records_total 1\n") {
		t.Errorf("not counted once:\n%s", w.Body)
	}
}
