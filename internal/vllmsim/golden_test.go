package vllmsim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// start serves cfg on loopback until the test ends.
func start(t testing.TB, cfg Config, lex lexicon) (*Server, string) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if lex != nil {
		s.lex = lex
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, ln.Addr().String()
}

// send writes raw to a connection of its own and returns all that comes back.
func send(t *testing.T, addr string, raw []byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err = conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err = conn.Write(raw); err != nil {
		t.Fatal(err)
	}
	reply, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("reading reply: %v after %q", err, reply)
	}
	return reply
}

var masks = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`(chatcmpl|cmpl|resp|msg|modelperm|generate-tokens)([-_])[0-9a-f]{16,32}`), "$1$2ID"},
	{regexp.MustCompile(`"(created|created_at)":\d+`), `"$1":0`},
	{regexp.MustCompile(`"([a-z_]+_ms|tokens_per_second)":[0-9.e-]+`), `"$1":0`},
}

func mask(body []byte) string {
	for _, m := range masks {
		body = m.re.ReplaceAll(body, []byte(m.to))
	}
	return string(body)
}

// headers returns the status line and the headers by lower-case name, with what differs in every run masked.
func headers(head string, clientID bool) map[string]string {
	lines := strings.Split(head, "\r\n")
	m := map[string]string{"": lines[0]}
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ": ")
		name = strings.ToLower(name)
		if name == "date" || name == "x-request-id" && !clientID {
			value = strconv.Itoa(len(value)) + " characters"
		}
		m[name] = value
	}
	return m
}

// recordings that the simulator answers otherwise, and why.
var deviations = map[string]string{
	"err-malformed-http":         "net/http refuses a malformed request line with a text of its own",
	"util-kv_event_sources":      "KV events are not published",
	"util-metrics-start-headers": "the head of /metrics is compared by TestMetricsPages",
	"util-abort_requests-by-id":  "needs a running request: TestAbortRequests",
	"err-completions-text-huge":  "the recorded body is shortened: TestHugeText",
}

// TestRecordedExchanges sends every recorded request and compares the answer with the recorded bytes: status, headers, body
// and chunk framing. Ids, creation times and dates are masked; tokens and texts are the recorded ones.
func TestRecordedExchanges(t *testing.T) {
	for _, group := range []struct {
		dir     string
		cfg     Config
		prepare func(*testing.T, *Server, string, string)
	}{
		{"vllm-0.32.0/http", recordedConfig("current"), nil},
		{"vllm-0.10.0/http", recordedConfig("vllm-0.8"), nil},
		{"vllm-0.32.0/http/limits", limitsConfig(), fillUp},
		{"vllm-0.32.0/http/drain", drainConfig(), func(_ *testing.T, s *Server, _, _ string) { s.Terminate() }},
	} {
		files, err := filepath.Glob(filepath.Join("testdata", group.dir, "*.response.http"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no recordings in %s: %v", group.dir, err)
		}
		for _, f := range files {
			stem := strings.TrimSuffix(filepath.Base(f), ".response.http")
			t.Run(group.dir+"/"+stem, func(t *testing.T) {
				if why := deviations[stem]; why != "" {
					t.Skip(why)
				}
				compareExchange(t, strings.TrimSuffix(f, ".response.http"), group.cfg, group.prepare)
			})
		}
	}
}

func limitsConfig() Config {
	cfg := recordedConfig("current")
	cfg.ScaleOut, cfg.APIKey, cfg.RequestMetrics, cfg.LoadTracking = true, "secret", true, true
	cfg.MaxQueuedReqs, cfg.MaxQueuedTokens = 2, 600
	return cfg
}

func drainConfig() Config {
	cfg := recordedConfig("current")
	cfg.ShutdownTimeout = 12 * time.Second
	return cfg
}

// fillUp brings the server to the limit that a recording ran into.
func fillUp(t *testing.T, s *Server, addr, stem string) {
	if !strings.HasPrefix(filepath.Base(stem), "503") {
		return
	}
	s.SetFault(Fault{Kind: FaultZombie}) // nothing moves from now on
	prompts := []int{10, 10}
	if strings.Contains(stem, "queued-tokens") {
		prompts = []int{700}
	}
	for _, n := range prompts {
		c := &call{n: 1}
		c.jobs = []*job{newJob(c, params{maxGiven: true, lex: s.lex}, make([]uint32, n), 0, 5, uint64(n))}
		if e := s.submit(c); e != nil {
			t.Fatal(e)
		}
	}
}

func compareExchange(t *testing.T, stem string, cfg Config, prepare func(*testing.T, *Server, string, string)) {
	rec := readExchange(t, stem)
	prompts := 1
	if strings.HasSuffix(stem, "two-prompts") {
		prompts = 2
	}
	lex := newRecordedLexicon(rec.response, prompts)
	switch {
	case strings.Contains(stem, "stop-string"):
		lex.answers = [][]token{{{364, "ri"}, {109, " t"}, {364, "ri"}}}
	case lex.promptTokens == 0 && strings.Contains(string(rec.request), "helpful assistant"):
		lex.promptTokens = 191
	case lex.promptTokens == 0 && strings.Contains(string(rec.request), `"content": "hi"`):
		lex.promptTokens = 14
	}
	s, addr := start(t, cfg, lex)
	warm(t, addr, stem, rec)
	lex.seeds = map[uint64]int{}
	if prepare != nil {
		prepare(t, s, addr, stem)
	}
	got := send(t, addr, rec.request)
	gotHead, gotBody := splitHead(got)
	wantHead, wantBody := splitHead(rec.response)
	clientID := strings.Contains(string(rec.request), "X-Request-Id")
	want, have := headers(wantHead, clientID), headers(gotHead, clientID)
	gotText, wantText := mask(gotBody), mask(wantBody)
	if strings.HasSuffix(stem, "per-request-metrics") {
		delete(want, "content-length") // the measured times differ in length
		delete(have, "content-length")
		sizes := regexp.MustCompile(`(?m)^[0-9a-f]+\r$`)
		gotText, wantText = sizes.ReplaceAllString(gotText, "N"), sizes.ReplaceAllString(wantText, "N")
	}
	if strings.HasSuffix(stem, "vllm-0.10.0/http/util-models") {
		want["content-length"] = strconv.Itoa(len(wantBody)) // the recording's model path was shortened, its head was not
	}
	if strings.HasSuffix(stem, "chat-stream-n2") {
		// The recorded server took up the second answer a step later: the order within each answer is what counts.
		wantText, gotText = byChoice(wantText), byChoice(gotText)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("head (-recorded +got):\n%s", diff)
	}
	if diff := cmp.Diff(strings.Split(wantText, "\n"), strings.Split(gotText, "\n")); diff != "" {
		t.Errorf("body (-recorded +got):\n%s", diff)
	}
}

var choiceIndex = regexp.MustCompile(`"index":(\d+)`)

// byChoice sorts chunks by the answer that they belong to.
func byChoice(body string) string {
	chunks := regexp.MustCompile(`(?m)^[0-9a-f]+\r\n`).Split(body, -1)
	slices.SortStableFunc(chunks, func(a, b string) int {
		return strings.Compare(choiceIndex.FindString(a), choiceIndex.FindString(b))
	})
	return strings.Join(chunks, "\n")
}

// warm fills the prefix cache with what the recorded server had seen before.
func warm(t *testing.T, addr, stem string, rec exchangeFile) {
	cached := regexp.MustCompile(`"(?:cached_tokens|cache_read_input_tokens)":[1-9]`).Match(rec.response)
	switch {
	case strings.HasSuffix(stem, "ok-completions-prompt-plus-max-tokens-clamped"):
		send(t, addr, readExchange(t, filepath.Join(filepath.Dir(stem), "completions-token-ids")).request)
	case cached:
		send(t, addr, rec.request)
	}
}

// TestHeaderNames: names are in lower case on the wire, except those that net/http writes itself.
func TestHeaderNames(t *testing.T) {
	_, addr := start(t, recordedConfig("current"), nil)
	head, _ := splitHead(send(t, addr, []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")))
	for _, line := range strings.Split(head, "\r\n")[1:] {
		name, _, _ := strings.Cut(line, ":")
		switch name {
		case "Content-Length", "Connection", "Transfer-Encoding":
		default:
			if name != strings.ToLower(name) {
				t.Errorf("header %q is not in lower case", name)
			}
		}
	}
}

// TestHugeText: more characters than can fit are refused without tokenizing them.
func TestHugeText(t *testing.T) {
	rec := readExchange(t, "testdata/vllm-0.32.0/http/err-completions-text-huge")
	_, addr := start(t, recordedConfig("current"), nil)
	body := `{"model": "tiny", "prompt": "` + strings.Repeat("word ", 40000) + `", "max_tokens": 1}`
	got := send(t, addr, []byte("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "+
		strconv.Itoa(len(body))+"\r\nConnection: close\r\n\r\n"+body))
	_, gotBody := splitHead(got)
	_, wantBody := splitHead(rec.response)
	if diff := cmp.Diff(string(wantBody), string(gotBody)); diff != "" {
		t.Error(diff)
	}
}

var sampleLine = regexp.MustCompile(`^(\S+?)(\{.*\})? (\S+)$`)

// shape reduces a page to what must be equal: the lines in their order, with the values replaced by their kind of number and
// the label values of the cache configuration left out.
func shape(page []byte) []string {
	var lines []string
	for line := range bytes.Lines(page) {
		m := sampleLine.FindStringSubmatch(strings.TrimSuffix(string(line), "\n"))
		if strings.HasPrefix(string(line), "#") || m == nil {
			lines = append(lines, string(line))
			continue
		}
		labels, value := m[2], "number"
		switch {
		case strings.HasPrefix(m[1], "vllm:cache_config"):
			labels = regexp.MustCompile(`(kv_cache_memory_bytes)="[^"]*"`).ReplaceAllString(labels, `$1=""`)
			value = m[3]
		case strings.HasSuffix(m[1], "_created"), m[1] == "process_start_time_seconds":
			if strings.HasSuffix(m[3], "e+09") {
				value = "1.7e+09"
			}
		case strings.HasSuffix(m[1], "_bucket"), strings.HasSuffix(m[1], "_sum"), strings.HasPrefix(m[1], "process_"),
			strings.HasPrefix(m[1], "python_"):
			if !regexp.MustCompile(`^[0-9.]+(e[+-]\d+)?$`).MatchString(m[3]) {
				value = m[3]
			}
		default:
			value = m[3] // counters and gauges: the recorded value
		}
		lines = append(lines, m[1]+labels+" "+value)
	}
	return lines
}

// TestMetricsPages replays what the recorded servers had been asked before each page, and compares families, labels, order
// and number format of all lines, and the values of gauges and counters.
func TestMetricsPages(t *testing.T) {
	before := map[string][]string{"00-start": nil,
		"01-after-one-short-chat":  {"util-models", "util-kv_event_sources", "util-is_sleeping", "util-is_paused", "util-weight_info", "util-tokenize-chat", "util-tokenize-prompt", "util-detokenize", "util-chat-render", "util-completions-render", "util-count-tokens", "chat-nonstream-1-cold"},
		"02-after-same-chat-twice": {"util-models", "util-kv_event_sources", "util-is_sleeping", "util-is_paused", "util-weight_info", "util-tokenize-chat", "util-tokenize-prompt", "util-detokenize", "util-chat-render", "util-completions-render", "util-count-tokens", "chat-nonstream-1-cold", "chat-nonstream-2-same-prompt-hit"},
	}
	for _, v := range []struct{ version, style string }{{"vllm-0.32.0", "current"}, {"vllm-0.10.0", "vllm-0.8"}} {
		for page, stems := range before {
			t.Run(v.version+"/"+page, func(t *testing.T) {
				want, err := os.ReadFile(filepath.Join("testdata", v.version, "metrics", page+".txt"))
				if err != nil {
					t.Fatal(err)
				}
				lex := &recordedLexicon{promptTokens: 191, seeds: map[uint64]int{}}
				_, addr := start(t, recordedConfig(v.style), lex)
				for _, stem := range stems {
					raw, err := os.ReadFile(filepath.Join("testdata", v.version, "http", stem+".request.http"))
					if os.IsNotExist(err) {
						continue // the older server was not asked for it
					}
					if err != nil {
						t.Fatal(err)
					}
					send(t, addr, raw)
				}
				_, got := splitHead(send(t, addr, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: a\r\n\r\n")))
				if diff := cmp.Diff(keepComparable(shape(want)), keepComparable(shape(got))); diff != "" {
					t.Errorf("page (-recorded +got):\n%s", diff)
				}
			})
		}
	}
}

// keepComparable drops the sizes of answers that differ in content: http_response_size_bytes_sum of KV event sources.
func keepComparable(lines []string) []string {
	out := lines[:0:0]
	for _, l := range lines {
		if strings.HasPrefix(l, "http_response_size_bytes_sum") || strings.HasPrefix(l, "http_request_size_bytes_sum") {
			l, _, _ = strings.Cut(l, " ")
		}
		out = append(out, l)
	}
	return out
}
