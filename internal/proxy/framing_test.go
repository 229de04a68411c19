package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// play is an endpoint in bytes: it reads a request, answers with head, and hands each further piece to the network when it is
// told to. A piece is a chunk of the framing, unless the head announces none.
type play struct {
	url  string
	next chan string // closed: the answer ends in good order
}

func newPlay(t testing.TB, head string) *play {
	t.Helper()
	p := &play{next: make(chan string)}
	p.url = loopback.Serve(t, func(c net.Conn) { p.serve(c, head) })
	return p
}

func (p *play) serve(c net.Conn, head string) {
	defer c.Close()
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	chunked := strings.Contains(head, "chunked")
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+head+"\r\n")
	w := bufio.NewWriterSize(c, 128<<10)
	for piece := range p.next {
		if chunked {
			fmt.Fprintf(w, "%x\r\n", len(piece))
		}
		_, _ = w.WriteString(piece)
		if chunked {
			_, _ = w.WriteString("\r\n")
		}
		if w.Flush() != nil {
			return
		}
	}
	if chunked {
		_, _ = io.WriteString(c, "0\r\n\r\n")
	}
}

const (
	chunkedStream = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
	closingStream = "content-type: text/event-stream\r\nconnection: close\r\n"
)

// framing is a stream in the pieces in which its endpoint writes it.
type framing struct {
	name, head string
	path, body string // default: a chat
	pieces     []string
	usage      bool // it tells 20 prompt and 2 output tokens
}

// singly cuts s into single bytes, also those of one character.
func singly(s string) []string {
	list := make([]string, len(s))
	for i := range list {
		list[i] = s[i : i+1]
	}
	return list
}

func framings() []framing {
	whole := delta("a") + delta("täglich 世界 😀") + finishStop + usageEvent + doneEvent
	with := func(brk string) string { return strings.ReplaceAll(whole, "\n", brk) }
	lines := strings.NewReplacer(`{"id":"x",`, "{\ndata: \"id\":\ndata:\ndata:  \"x\",", `,"choices":`, ",\ndata: \"choices\":")
	named := "event: message\nid: 7\nretry: 10\nunknown: x\nnocolon\n: a comment\n" + delta("a") + "id\n:\n\n" + finishStop + usageEvent + doneEvent
	return []framing{
		{name: "LF", pieces: []string{delta("a"), delta("b"), finishStop, usageEvent, doneEvent}, usage: true},
		{name: "CRLF", pieces: strings.SplitAfter(with("\r\n"), "\r\n\r\n"), usage: true},
		{name: "CR", pieces: strings.SplitAfter(with("\r"), "\r\r"), usage: true},
		{name: "LF byte by byte", pieces: append([]string{delta("a")}, singly(strings.TrimPrefix(whole, delta("a")))...), usage: true},
		{name: "CRLF byte by byte", pieces: append([]string{strings.ReplaceAll(delta("a"), "\n", "\r\n")}, singly(strings.TrimPrefix(with("\r\n"), strings.ReplaceAll(delta("a"), "\n", "\r\n")))...), usage: true},
		{name: "CR byte by byte", pieces: append([]string{strings.ReplaceAll(delta("a"), "\n", "\r")}, singly(strings.TrimPrefix(with("\r"), strings.ReplaceAll(delta("a"), "\n", "\r")))...), usage: true},
		{name: "comments alone, before anything", pieces: []string{": hello\n\n", ":\n\n", ": again\r\n\r\n", delta("a"), ": between\n", finishStop, usageEvent, doneEvent, ": after\n\n"}, usage: true},
		{name: "every field", pieces: []string{named}, usage: true},
		{name: "data in many lines", pieces: strings.SplitAfter(lines.Replace(whole), "\n\n"), usage: true},
		{name: "data without space", pieces: strings.SplitAfter(strings.ReplaceAll(whole, "data: ", "data:"), "\n\n"), usage: true},
		{name: "byte order mark", pieces: []string{"\xef\xbb\xbf" + whole}, usage: true},
		{name: "no blank line at all", pieces: strings.SplitAfter(strings.ReplaceAll(whole, "\n\n", "\n"), "\n"), usage: true},
		{name: "bytes that are no text", pieces: []string{delta("a"), "data: \xff\xfe\x00\n\n", "\x00\xc3", "\x28: x\n\n", finishStop, usageEvent, doneEvent}, usage: true},
		{name: "ends with the connection", head: closingStream, pieces: []string{delta("a"), delta("b"), finishStop, usageEvent, doneEvent}, usage: true},
		{name: "no [DONE]", pieces: []string{delta("a"), finishStop}, usage: false},
		{name: "completions", path: "/v1/completions", body: `{"model":"m","prompt":"x","stream":true}`, pieces: []string{
			`data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}` + "\n\n", `data: {"choices":[{"index":0,"text":"b","finish_reason":"length"}],"usage":{"prompt_tokens":20,"completion_tokens":2}}` + "\n\n", doneEvent}, usage: true},
		{name: "responses", path: "/v1/responses", body: `{"model":"m","input":"x","stream":true}`, pieces: []string{
			"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\"}}\n\n", "event: response.output_text.delta\n", "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":20,\"output_tokens\":2}}}\n\n"}, usage: true},
		{name: "messages", path: "/v1/messages", body: `{"model":"m","max_tokens":9,"messages":[],"stream":true}`, pieces: []string{
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":20,\"output_tokens\":0}}}\n\n", "event: ping\ndata: {\"type\": \"ping\"}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"}, usage: true},
		{name: "gzip", head: "content-encoding: gzip\r\n" + chunkedStream, pieces: flushes(delta("a"), delta("b"), finishStop, doneEvent)},
	}
}

// flushes compresses a stream as a server does that flushes after each event.
func flushes(events ...string) (pieces []string) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for _, e := range events {
		_, _ = io.WriteString(z, e)
		_ = z.Flush()
		pieces = append(pieces, b.String())
		b.Reset()
	}
	_ = z.Close()
	return append(pieces, b.String())
}

// TestFraming: a client has the head of a stream before the first event exists, and each write of the endpoint before the next
// one is made; the bytes are the endpoint's, whatever framing it chose, and what they say of tokens was read beside.
func TestFraming(t *testing.T) {
	for _, f := range framings() {
		t.Run(f.name, func(t *testing.T) {
			if f.path == "" {
				f.path, f.body = chat, streamBody
			}
			if f.head == "" {
				f.head = chunkedStream
			}
			for _, name := range []string{"HTTP/1.1", "HTTP/2"} {
				up := newPlay(t, f.head) // one each: it closes its connection after an answer
				r := newRig(t, []string{up.url})
				res, err := r.clients()[name].Post(r.server.URL+f.path, "application/json", strings.NewReader(f.body))
				if err != nil || res.StatusCode != 200 || res.Proto[:6] != name[:6] {
					t.Fatalf("%s: %v, %v", name, res, err)
				}
				f.lockstep(t, name, up, res)
				if rec := r.record(); rec["outcome"] != "ok" || f.usage && (rec["prompt_tokens"] != "20" || rec["output_tokens"] != "2") {
					t.Errorf("%s: record %v", name, rec)
				}
				r.idle()
			}
		})
	}
}

// lockstep hands the endpoint a piece when the client has the one before.
func (f *framing) lockstep(t *testing.T, name string, up *play, res *http.Response) {
	t.Helper()
	defer res.Body.Close()
	late := time.AfterFunc(patience, func() { res.Body.Close() })
	defer late.Stop()
	for i, piece := range f.pieces {
		if piece == "" {
			continue
		}
		up.next <- piece
		got := make([]byte, len(piece))
		if n, err := io.ReadFull(res.Body, got); err != nil || string(got) != piece {
			t.Fatalf("%s: piece %d: %v after %d bytes\n%s", name, i, err, n, cmp.Diff(piece, string(got[:n])))
		}
	}
	close(up.next)
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("%s: after the last piece: %q, %v", name, rest, err)
	}
}

// TestLongLine passes a line of 20 MB, and memory for it is not taken.
func TestLongLine(t *testing.T) {
	const size = 20 << 20
	up := newPlay(t, chunkedStream)
	r := newRig(t, []string{up.url})
	res := r.post(chat, streamBody)
	begin, end := delta("a")+`data: {"choices":[{"index":0,"delta":{"content":"`, `"},"finish_reason":"stop"}]}`+"\n\n"+usageEvent+doneEvent
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	piece := strings.Repeat("x", 64<<10)
	go func() {
		up.next <- begin
		for range size / len(piece) {
			up.next <- piece
		}
		up.next <- end
		close(up.next)
	}()
	got := make([]byte, 32<<10)
	n, xs := 0, 0
	for {
		k, err := res.Body.Read(got)
		n, xs = n+k, xs+bytes.Count(got[:k], []byte("x"))
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	want := begin + end
	if n != size+len(want) || xs != size+strings.Count(want, "x") {
		t.Errorf("%d bytes, %d of the line", n, xs)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 2<<20 {
		t.Errorf("%d bytes of memory were taken for a line of %d", took, size)
	}
	if rec := r.record(); rec["outcome"] != "ok" || rec["output_tokens"] != "2" {
		t.Errorf("record %v", rec)
	}
}
