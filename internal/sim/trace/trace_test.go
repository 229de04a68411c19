package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/sim"
)

func file(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func open(t *testing.T, lines ...string) *Trace {
	t.Helper()
	tr, err := Open(file(t, lines...), "")
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// all reads the events of a trace in order of arrival.
func all(t *testing.T, tr *Trace) []Event {
	t.Helper()
	f, err := openFile(tr.File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := tr.events(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []Event
	for {
		var ev Event
		if err := s.read(&ev); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, ev)
	}
}

const ms = time.Millisecond

func TestMooncake(t *testing.T) {
	tr := open(t,
		`{"timestamp": 27, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}`,
		``,
		`{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [46]}`,
		`{"timestamp": 3000.5, "input_length": 30, "output_length": 9, "hash_ids": [7, 8], "block_tokens": [10, 20]}`,
	)
	if tr.Requests != 3 || tr.Prefixes != 3 || tr.Span != 3000500*time.Microsecond || tr.Prompt != 1730 || tr.Output != 64 {
		t.Errorf("%+v", tr)
	}
	want := []Event{
		{At: 0, Parts: []sim.Part{{ID: partID(46), Tokens: 512}, {Tokens: 88}}, Output: 3},
		{At: 27 * ms, Parts: []sim.Part{{ID: partID(46), Tokens: 512}, {ID: partID(47), Tokens: 512}, {ID: partID(2353), Tokens: 76}}, Output: 52},
		{At: 3000500 * time.Microsecond, Parts: []sim.Part{{ID: partID(7), Tokens: 10}, {ID: partID(8), Tokens: 20}}, Output: 9},
	}
	if diff := cmp.Diff(want, all(t, tr)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAzure(t *testing.T) {
	tr := open(t, "TIMESTAMP,ContextTokens,GeneratedTokens\r", "2023-11-16 18:15:46.6805900,374,44\r", "2023-11-16 18:15:47.1805900,396,109")
	if tr.Format != Azure || tr.Prefixes != 0 || tr.Span != 500*ms {
		t.Errorf("%+v", tr)
	}
	got := all(t, tr)
	if len(got) != 2 || got[1].Output != 109 || cmp.Diff([]sim.Part{{Tokens: 396}}, got[1].Parts) != "" {
		t.Errorf("%+v", got)
	}
}

// Access records come when requests end: their order of arrival is restored. Requests that no pool served are left out; what
// an answer would have become that did not end is the mean.
func TestAccess(t *testing.T) {
	tr := open(t,
		`{"time":"2026-12-02T10:00:00Z","level":"INFO","msg":"listening","addr":"127.0.0.1:8080"}`,
		`{"time":"2026-12-02T10:00:05Z","msg":"request","pool":"chat","model":"m","outcome":"ok","prompt_tokens":1000,"output_tokens":20,"duration_seconds":1,"prefix":"00000000000000aa:2048 00000000000000bb:1952"}`,
		`{"time":"2026-12-02T10:00:06Z","msg":"request","pool":"chat","model":"m","outcome":"ok","prompt_tokens":1100,"output_tokens":40,"duration_seconds":3,"prefix":"00000000000000aa:2048 00000000000000cc:2352"}`,
		`{"time":"2026-12-02T10:00:07Z","msg":"request","outcome":"client_error","status":404,"duration_seconds":0.001}`,
		`{"time":"2026-12-02T10:00:08Z","msg":"request","pool":"chat","outcome":"client_cancelled","prompt_tokens":1000,"output_tokens":3,"duration_seconds":0.5}`,
	)
	if diff := cmp.Diff(map[string]int{string(notAccess): 1, string(notInferred): 1}, tr.Skipped); diff != "" {
		t.Error(diff)
	}
	got := all(t, tr)
	for i := range got {
		got[i].At -= tr.First
	}
	want := []Event{
		{At: 0, Parts: []sim.Part{{ID: partID(0xaa), Tokens: 512}, {ID: partID(0xcc), Tokens: 588}}, Output: 40, Class: "m"},
		{At: time.Second, Parts: []sim.Part{{ID: partID(0xaa), Tokens: 512}, {ID: partID(0xbb), Tokens: 488}}, Output: 20, Class: "m"},
		{At: 4500 * ms, Parts: []sim.Part{{Tokens: 1000}}, Left: 500 * ms},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if tr.MeanOutput() != 30 || tr.Unknown != 1 || tr.Prefixes != 2 {
		t.Errorf("mean %d, unknown %d, with prefixes %d", tr.MeanOutput(), tr.Unknown, tr.Prefixes)
	}
	if _, err := Open(tr.File, "code"); err == nil || !strings.Contains(err.Error(), "3 lines: records of other pools") {
		t.Errorf("a pool that is not there: %v", err)
	}
}

// Pieces are measured with the bytes per token of the whole file; what is over the prompt's tokens is text of its own.
func TestAccessMeasuresTokens(t *testing.T) {
	record := `{"time":"2026-12-02T10:00:0%dZ","msg":"request","pool":"p","outcome":"ok","prompt_tokens":%d,"output_tokens":1,"duration_seconds":1,"prefix":"%s"}`
	tr := open(t, fmt.Sprintf(record, 5, 2000, "aa:2000 bb:2000"), fmt.Sprintf(record, 6, 1000, "aa:2000"), fmt.Sprintf(record, 7, 1000, "aa:2000 cc:2000 dd:10"), fmt.Sprintf(record, 8, 1010, ""))
	got := all(t, tr)
	want := [][]sim.Part{ // 10,010 bytes are 4,000 tokens
		{{ID: partID(0xaa), Tokens: 799}, {ID: partID(0xbb), Tokens: 799}, {Tokens: 402}},
		{{ID: partID(0xaa), Tokens: 799}, {Tokens: 201}}, {{ID: partID(0xaa), Tokens: 799}, {Tokens: 201}}, {{Tokens: 1010}},
	}
	for i := range want {
		if diff := cmp.Diff(want[i], got[i].Parts); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", i, diff)
		}
	}
}

// What Write makes reads as the same requests, and has nothing of the names and times in the records.
func TestWriteIsAnonymous(t *testing.T) {
	tr := open(t,
		`{"time":"2026-12-02T10:00:05Z","msg":"request","request_id":"secret","pool":"chat","model":"secret","endpoint":"10.0.0.1:8000","outcome":"ok","prompt_tokens":1000,"output_tokens":20,"duration_seconds":1,"prefix":"ffffffffffffffaa:2048 00000000000000bb:1952"}`,
		`{"time":"2026-12-02T10:00:05.5Z","msg":"request","pool":"chat","outcome":"ok","prompt_tokens":1100,"output_tokens":40,"duration_seconds":2,"prefix":"ffffffffffffffaa:2048 00000000000000cc:2252"}`,
	)
	var b bytes.Buffer
	if err := tr.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"secret", "chat", "10.0.0", "2026", "ffffffffffffffaa"} {
		if strings.Contains(b.String(), word) {
			t.Errorf("%q is in\n%s", word, b.String())
		}
	}
	var first mooncakeRequest
	if err := json.Unmarshal([]byte(strings.SplitN(b.String(), "\n", 2)[0]), &first); err != nil || len(first.Hashes) != 2 || first.Hashes[0] >= 1<<53 {
		t.Errorf("%v: names %v, which many readers of JSON would round", err, first.Hashes)
	}
	again := open(t, strings.Split(b.String(), "\n")...)
	a, c := all(t, tr), all(t, again)
	if again.Format != Mooncake || len(a) != 2 || len(c) != 2 || a[0].Parts[0].ID != a[1].Parts[0].ID || c[0].Parts[0].ID != c[1].Parts[0].ID {
		t.Fatalf("%+v\n%+v", a, c)
	}
	for i := range a {
		for k := range a[i].Parts {
			if a[i].Parts[k].Tokens != c[i].Parts[k].Tokens {
				t.Errorf("request %d, piece %d: %d and %d tokens", i, k, a[i].Parts[k].Tokens, c[i].Parts[k].Tokens)
			}
		}
		if a[i].At-tr.First != c[i].At || a[i].Output != c[i].Output {
			t.Errorf("request %d: %+v and %+v", i, a[i], c[i])
		}
	}
}

// Every bad line is named.
func TestBadLines(t *testing.T) {
	good := `{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [46, 47]}`
	access := `{"time":"2026-12-02T10:00:05Z","msg":"request","pool":"p","outcome":"ok","prompt_tokens":10,"duration_seconds":1}`
	azure := "TIMESTAMP,ContextTokens,GeneratedTokens"
	for _, c := range []struct{ first, second, want string }{
		{good, `{"timestamp": 0`, ":2: decoding the line"},
		{good, `{"input_length": 600, "output_length": 3}`, ":2: timestamp is missing"},
		{good, `{"timestamp": 0, "output_length": 3}`, ":2: input_length is missing"},
		{good, `{"timestamp": 0, "input_length": 600}`, ":2: output_length is missing"},
		{good, `{"timestamp": -1, "input_length": 600, "output_length": 3}`, ":2: timestamp -1 is outside"},
		{good, `{"timestamp": 1, "input_length": 600, "output_length": -3}`, ":2: output_length -3 is no whole number"},
		{good, `{"timestamp": 1, "input_length": 0, "output_length": 3}`, ":2: input_length 0 is no whole number"},
		{good, `{"timestamp": 1, "input_length": 600, "output_length": 3, "hash_ids": [1,2,3]}`, ":2: 3 hash_ids are more than 600 tokens have"},
		{good, `{"timestamp": 1, "input_length": 600, "output_length": 3, "hash_ids": [1,2], "block_tokens": [1]}`, ":2: block_tokens has 1 entries for 2"},
		{good, `{"timestamp": 1, "input_length": 6, "output_length": 3, "hash_ids": [1], "block_tokens": [0]}`, ":2: block_tokens: 0 is below 1"},
		{good, `{"timestamp": 1, "input_length": -5, "output_length": 3}`, ":2: input_length -5 is no whole number from 1"},
		{good, `{"timestamp": 1, "input_length": 5.5, "output_length": 3}`, ":2: input_length 5.5 is no whole number"},
		{good, `{"timestamp": 1, "input_length": 1e30, "output_length": 3}`, ":2: input_length 1e+30 is no whole number from 1 to 100000000"},
		{good, `{"timestamp": 1, "input_length": 99999999999999999999, "output_length": 3}`, ":2: input_length 1e+20 is no whole number"},
		{good, `{"timestamp": 1e999, "input_length": 5, "output_length": 3}`, ":2: decoding the line: timestamp cannot be number 1e999"},
		{good, `{"timestamp": 1, "input_length": "5", "output_length": 3}`, ":2: decoding the line: input_length cannot be string"},
		{good, `{"timestamp": 1, "input_length": 600, "output_length": 3, "hash_ids": [-1]}`, ":2: decoding the line: hash_ids cannot be number -1"},
		{good, `[1, 2]`, ":2: decoding the line: it is array, want an object"},
		{good, `{"timestamp": 1, "input_le`, ":2: decoding the line: it breaks off"},
		{good, `{"timestamp": 1e12, "input_length": 5, "output_length": 3}`, "more than a year: is there a stamp that is wrong"},
		{azure, "2023-11-16 18:15:46,-1,44", ":2: a prompt of -1 tokens"},
		{azure, "2023-11-16 18:15:46,1,-44", ":2: an answer of -44 tokens"},
		{azure, "2023-11-16 18:15:46,99999999999999999999,44", ":2: a prompt of 9223372036854775807 tokens is outside 1 to 100000000"},
		{access, strings.Replace(access, `"prompt_tokens":10`, `"prompt_tokens":-10`, 1), ":2: prompt_tokens -10"},
		{access, strings.Replace(access, `"prompt_tokens":10`, `"prompt_tokens":10000000000`, 1), ":2: a prompt of 10000000000 tokens"},
		{"\xff\xfe{\x00", "", ":1: a file in UTF-16"},
		{"\x7fELF\x00\x00", "", ":1: a binary file"},
		{"\x28\xb5\x2f\xfd", "", "it is compressed with zstd"},
		{"\x1f\x8b\x08", "", "unpacking it: unexpected EOF"},
		{"\n \r\n", "", ": it is empty"},
		{azure, "x", ":2: 1 columns"},
		{azure, "2023-11-16 18:15,374,44", `:2: TIMESTAMP "2023-11-16 18:15" is none, want one like`},
		{azure, "2023-11-16 18:15:46,many,44", `:2: ContextTokens "many" is no whole number`},
		{azure, "2023-11-16 18:15:46,1,", `:2: GeneratedTokens "" is no whole number`},
		{access, `time=2026-12-02T10:00:05Z msg=request`, ":2: decoding the line"},
		{access, strings.Replace(access, `"prompt_tokens":10`, `"prompt_tokens":10,"prefix":"zz:1"`, 1), `:2: prefix has a piece "zz:1"`},
		{access, strings.Replace(access, `:1}`, `:-1}`, 1), ":2: duration_seconds -1"},
		{access, strings.Replace(access, "2026", "1026", 1), ":2: 1026-12-02"},
		{"time=2026-12-02T10:00:05Z msg=request", "", ":1: a log in text form"},
		{"hello", "", ":1: neither JSON lines"},
		{"", "", ": it is empty"},
		{azure, "", ": no request in it"},
		{"TIMESTAMP,ContextTokens", "2023-11-16 18:15:46,1", `:1: the columns are "TIMESTAMP,ContextTokens\n", want TIMESTAMP,ContextTokens,GeneratedTokens`},
		{"TIMESTAMP,ContextTokens,GeneratedTokens,User", "2023-11-16 18:15:46,1,2,x", ":1: the columns are"},
		{`{"input_toks": 27369, "output_toks": 1626, "arrival_time_ns": 101537000}`, "", ":1: neither an access record nor a line of Mooncake's format"},
		{`{"timestamp": 1700000000000000, "input_length": 600, "output_length": 3}`, "", ":1: timestamp 1.7e+15 is outside 0 to 3.1536e+12: it counts milliseconds"},
	} {
		_, err := Open(file(t, c.first, c.second), "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s / %s:\n got %v\nwant %s", c.first, c.second, err, c.want)
		}
	}
	if _, err := Open("/nowhere/trace", ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// What other systems make of a text file changes nothing: a byte order mark, line ends of two characters, numbers like 600.0, gzip.
func TestForeignFiles(t *testing.T) {
	want := all(t, open(t, `{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [46]}`, `{"timestamp": 5, "input_length": 20, "output_length": 7}`))
	text := "\ufeff\r\n" + `{"timestamp": 0.0, "input_length": 600.0, "output_length": 3.0, "hash_ids": [46]}` + "\r\n" + `{"timestamp": 5, "input_length": 2e1, "output_length": 7}` + "\r\n\r\n"
	text = strings.Replace(text, "\ufeff\r\n", "\ufeff", 1)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(text)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"text": text, "gzip": packed.String()} {
		tr := open(t, data)
		if diff := cmp.Diff(want, all(t, tr)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		var out bytes.Buffer
		if err := tr.Write(&out); err != nil || strings.Count(out.String(), "\n") != 2 || !strings.Contains(out.String(), `"input_length":600,`) {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
	if tr := open(t, "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r", "2023-11-16 18:15:46.6805900,374,44\r"); tr.Format != Azure || tr.Prompt != 374 {
		t.Errorf("%+v", tr)
	}
	if _, err := Open(file(t, packed.String()[:packed.Len()-12]), ""); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a file: %v", err)
	}
	if _, err := Open(t.TempDir(), ""); err == nil || !strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("a directory: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := Open(fmt.Sprintf("/dev/fd/%d", r.Fd()), ""); err == nil || !strings.Contains(err.Error(), "it is a pipe") && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pipe: %v", err)
	}
}

// endless is a trace of n lines that is made while it is read.
type endless struct {
	n, i int
	line func(i int) string
	rest string
}

func (e *endless) Read(p []byte) (int, error) {
	if e.rest == "" {
		if e.i == e.n {
			return 0, io.EOF
		}
		e.rest = e.line(e.i)
		e.i++
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// What a long trace takes of memory is what may still be overtaken, not what it holds; one that is out of order beyond measure is
// refused.
func TestLongTraces(t *testing.T) {
	const n = 20_000
	mooncake := func(at int) string {
		return fmt.Sprintf("{\"timestamp\": %d, \"input_length\": 1100, \"output_length\": 9, \"hash_ids\": [%d, %d]}\n", at, at%400, at)
	}
	for _, c := range []struct {
		name string
		line func(i int) string
		most int // events that are held at once
	}{
		{"in order", mooncake, 2},
		{"in slots of a thousand that are upside down", func(i int) string { return mooncake(i - i%1000 + 999 - i%1000) }, 2000},
		{"access records, as requests end", func(i int) string {
			end := time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC).Add(time.Duration(i) * 10 * ms)
			return fmt.Sprintf("{\"time\":%q,\"msg\":\"request\",\"pool\":\"p\",\"outcome\":\"ok\",\"prompt_tokens\":900,\"output_tokens\":9,\"duration_seconds\":%d}\n", end.Format(time.RFC3339Nano), i%7)
		}, 700},
	} {
		tr, err := scan(&endless{n: n, line: c.line}, "f", "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := tr.events(&endless{n: n, line: c.line})
		if err != nil {
			t.Fatal(err)
		}
		var ev Event
		var last time.Duration
		read, most := 0, 0
		for ; s.read(&ev) == nil; read++ {
			if most = max(most, len(s.held)); ev.At < last {
				t.Fatalf("%s: %v after %v", c.name, ev.At, last)
			}
			last = ev.At
		}
		if read != n || most > c.most {
			t.Errorf("%s: %d events, %d held at once, want at most %d", c.name, read, most, c.most)
		}
	}
	backwards := func(i int) string { return mooncake(n - i) }
	tr, err := scan(&endless{n: n, line: backwards}, "f", "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := tr.events(&endless{n: n, line: backwards})
	if err != nil {
		t.Fatal(err)
	}
	s.most = n / 2
	if err := s.read(new(Event)); err == nil || !strings.Contains(err.Error(), "f: some arrivals are 19.999s earlier than ones before them") {
		t.Errorf("backwards: %v", err)
	}
}

// A line of any length is read whole, up to a limit.
func TestLongLines(t *testing.T) {
	ids := "1" + strings.Repeat(", 1", 170_000)
	tr := open(t, `{"timestamp": 0, "input_length": 90000000, "output_length": 3, "hash_ids": [`+ids+`]}`)
	if len(all(t, tr)[0].Parts) != 170_002 { // and what is left of the prompt
		t.Errorf("%d pieces", len(all(t, tr)[0].Parts))
	}
}

// fixed answers every first token after 1 ms.
func fixed() sim.Config {
	return sim.Config{Endpoints: []sim.Endpoint{{Engine: sim.DefaultEngine(), Fixed: ms, Hold: ms}}}
}

// Requests come at the trace's times, faster by the rate, put off by less than the jitter; the time limit and the class depend on
// the length of the prompt; clients that went away go away.
func TestReplay(t *testing.T) {
	tr := open(t,
		`{"timestamp": 5000, "input_length": 600, "output_length": 3, "hash_ids": [46]}`,
		`{"timestamp": 8000, "input_length": 20000, "output_length": 0}`,
		`{"timestamp": 8000, "input_length": 100, "output_length": 7}`,
	)
	run := func(o Options) (got []sim.Record) {
		t.Helper()
		r, err := tr.Replay(o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		c := fixed()
		c.Workload, c.Length, c.Seed = r.Workload, r.Length()+1, 4
		c.Sink = func(rec *sim.Record) { got = append(got, *rec) }
		if _, err := sim.Run(c); err != nil || r.Err() != nil {
			t.Fatal(err, r.Err())
		}
		return got
	}
	got := run(Options{Rate: 1.5, SLO: time.Second, LongSLO: time.Minute, LongFrom: 16384})
	if len(got) != 3 || got[0].At != 0 || got[1].At != 2*time.Second || got[2].At != 2*time.Second {
		t.Fatalf("%+v", got)
	}
	if got[1].SLO != time.Minute || got[1].Class != "long" || got[1].Output != 5 || got[2].SLO != time.Second || got[2].Class != "short" {
		t.Errorf("%+v", got)
	}
	got = run(Options{Jitter: time.Second})
	if len(got) != 3 || got[0].At >= time.Second || got[1].At < 3*time.Second || got[2].At >= 4*time.Second || got[1].At == got[2].At {
		t.Errorf("jittered: %+v", got)
	}
	if _, err := tr.Replay(Options{Rate: -1}); err == nil {
		t.Error("a negative rate")
	}
}

// What would arrive after the end of arrivals is not sent, however long the run goes on; nor what jitter puts off to then.
func TestReplayEndsWithArrivals(t *testing.T) {
	var text []string
	for i := range 40 {
		text = append(text, fmt.Sprintf(`{"timestamp": %d, "input_length": 600, "output_length": 3}`, 100*i))
	}
	tr := open(t, text...)
	for _, jitter := range []time.Duration{0, 500 * ms} {
		r, err := tr.Replay(Options{Jitter: jitter})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		c := fixed()
		c.Endpoints[0].Hold = 20 * time.Second
		c.Workload, c.Length = r.Workload, 2*time.Second
		var last time.Duration
		c.Sink = func(rec *sim.Record) { last = max(last, rec.At) }
		res, err := sim.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if last >= c.Length || jitter == 0 && res.Total != 20 || res.Total < 15 {
			t.Errorf("jitter %v: %d requests, the last at %v", jitter, res.Total, last)
		}
	}
}

// The columns of Azure's format are found by their names, with quotes, blanks and small letters too.
func TestAzureColumns(t *testing.T) {
	for _, head := range []string{"TIMESTAMP,GeneratedTokens,ContextTokens", `"TIMESTAMP","GeneratedTokens","ContextTokens"`, "timestamp, generatedtokens, contexttokens\r"} {
		tr := open(t, head, `"2023-11-16 18:15:46.6805900", 44,374`)
		if tr.Format != Azure || tr.Prompt != 374 || tr.Output != 44 {
			t.Errorf("%s: %d prompt and %d output tokens", head, tr.Prompt, tr.Output)
		}
	}
}

func FuzzTrace(f *testing.F) {
	for _, seed := range []string{
		`{"timestamp": 27, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}`,
		`{"timestamp": 1e308, "input_length": 30, "output_length": 9, "hash_ids": [7, 8], "block_tokens": [10, 20]}`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
		`{"time":"2026-12-02T10:00:05Z","msg":"request","pool":"p","outcome":"ok","prompt_tokens":10,"duration_seconds":1,"prefix":"aa:2048 bb:1"}`,
		`{"time":"2026-12-02T10:00:05Z","msg":"request","pool":"p","outcome":"cut","prompt_tokens":9999999,"duration_seconds":1e9}` + "\n{}",
		"\ufeff{\"timestamp\": 0.0, \"input_length\": 600.0, \"output_length\": 3.0}\r\n", "\xff\xfe{\x00", "{\"timestamp\": 5, \"input_length\": 2, \"output_length\": 3}\n{\"timestamp\": 1, \"input_length\": 2, \"output_length\": -3}",
		"\n\n{", "\"msg\"", "TIMESTAMP,",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := scan(bytes.NewReader(data), "f", "")
		if err != nil {
			return
		}
		if tr.Requests < 1 || tr.Span < 0 || tr.Prompt < int64(tr.Requests) {
			t.Fatalf("%+v", tr)
		}
		s, err := tr.events(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		var last time.Duration
		n := 0
		for {
			var ev Event
			if err := s.read(&ev); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if n++; ev.At < last || ev.check() != nil {
				t.Fatalf("event %d: %+v after %v", n, ev, last)
			}
			last = ev.At
		}
		if n != tr.Requests {
			t.Fatalf("%d events, %d at the first reading", n, tr.Requests)
		}
	})
}
