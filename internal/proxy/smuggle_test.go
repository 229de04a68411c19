package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// relay stands before an endpoint and keeps what the gateway writes to it.
type relay struct {
	url  string
	mu   sync.Mutex
	sent []*bytes.Buffer // by connection
}

func newRelay(t testing.TB, to string) *relay {
	t.Helper()
	y := &relay{}
	y.url = loopback.Serve(t, func(c net.Conn) { y.pass(c, strings.TrimPrefix(to, "http://")) })
	return y
}

func (y *relay) pass(c net.Conn, to string) {
	defer c.Close()
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	kept := new(bytes.Buffer)
	y.mu.Lock()
	y.sent = append(y.sent, kept)
	y.mu.Unlock()
	go func() {
		_, _ = io.Copy(c, up)
		c.Close()
	}()
	defer up.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		y.mu.Lock()
		kept.Write(buf[:n])
		y.mu.Unlock()
		if _, e := up.Write(buf[:n]); e != nil || err != nil {
			return
		}
	}
}

// take returns the ids of the requests that went through since the last call, read by a parser that forgives nothing.
func (y *relay) take(t *testing.T) (ids []string) {
	t.Helper()
	for _, h := range y.heads(t) {
		ids = append(ids, h["x-request-id"][0])
	}
	return ids
}

// heads is take with all headers, by their names in lower case.
func (y *relay) heads(t *testing.T) (list []map[string][]string) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, b := range y.sent {
		for b.Len() > 0 {
			h, err := strictRequest(b)
			if err != nil {
				t.Fatalf("on the endpoint's wire: %v", err)
			}
			list = append(list, h)
		}
	}
	return list
}

var (
	wireLine   = regexp.MustCompile(`^POST (/v1/chat/completions|/v1/completions) HTTP/1\.1$`)
	wireHeader = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([!-~\\x80-\\xff]([\\t -~\\x80-\\xff]*[!-~\\x80-\\xff])?)?$")
	hopHeaders = []string{"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect", "http2-settings"}
)

// strictRequest reads one request and returns its headers.
func strictRequest(b *bytes.Buffer) (map[string][]string, error) {
	head, rest, ok := bytes.Cut(b.Bytes(), []byte("\r\n\r\n"))
	if !ok {
		return nil, fmt.Errorf("no end of a head in %q", b.Bytes())
	}
	lines := strings.Split(string(head), "\r\n")
	if !wireLine.MatchString(lines[0]) {
		return nil, fmt.Errorf("request line %q", lines[0])
	}
	h := map[string][]string{}
	for _, line := range lines[1:] {
		m := wireHeader.FindStringSubmatch(latin1(line))
		if m == nil {
			return nil, fmt.Errorf("header line %q", line)
		}
		name := strings.ToLower(m[1])
		if slices.Contains(hopHeaders, name) {
			return nil, fmt.Errorf("hop-by-hop header %q", line)
		}
		h[name] = append(h[name], m[2])
	}
	n := -1
	if len(h["content-length"]) == 1 {
		n, _ = strconv.Atoi(h["content-length"][0])
	}
	if n < 0 || n > len(rest) || len(h["host"]) != 1 || len(h["x-request-id"]) != 1 || !json.Valid(rest[:n]) {
		return nil, fmt.Errorf("length %d of %d, or no JSON, or not one host and id: %q", n, len(rest), head)
	}
	b.Next(len(head) + 4 + n)
	return h, nil
}

// latin1 makes a character of each byte.
func latin1(s string) string {
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}

// smuggling is what a client may write to make two parsers disagree about where its request ends.
type smuggling struct {
	name string
	send string
	odd  bool // by RFC 9112 the connection must not be used for what follows
}

const evilBody = `{"model":"m","prompt":"evil","max_tokens":1}`

var evil = fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: gw\r\nX-Request-Id: evil\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(evilBody), evilBody)

// corpus crosses ways to say where a body ends with bodies behind which another request stands.
func corpus() (list []smuggling) {
	n := len(chatBody)
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n, chatBody)
	bodies := map[string]string{"by length": chatBody + evil, "by chunks": chunked + evil}
	length := func(v string) string { return "Content-Length: " + v + "\r\n" }
	good, all := length(fmt.Sprint(n)), length(fmt.Sprint(len(chunked)+len(evil)))
	coding := func(v string) string { return "Transfer-Encoding: " + v + "\r\n" }
	var heads []string
	for _, v := range []string{"+%d", "-%d", "0x%x", "%d.0", "%de0", "%d,", ",%d", "%d, 5", "%d %d", "\"%d\"", "%d;", "1_%d", "18446744073709551616%d", "%d\x0b", "\x0b%d", "%d\xa0", "%d\x00", "", "abc"} {
		heads = append(heads, length(strings.ReplaceAll(strings.ReplaceAll(v, "%d", fmt.Sprint(n)), "%x", fmt.Sprintf("%x", n))))
	}
	heads = append(heads, good+length("5"), length("5")+good, length("0")+good, good+length("+"+fmt.Sprint(n)), "Content-Length : "+fmt.Sprint(n)+"\r\n", "Content-Length\t: "+fmt.Sprint(n)+"\r\n",
		"X: a\r\n Content-Length: "+fmt.Sprint(n)+"\r\n", "Content-Length\r\n", ": "+fmt.Sprint(n)+"\r\n", "Content-Length: "+fmt.Sprint(n)+"\rX: a\r\n", "X: a\rContent-Length: 5\r\n"+good)
	for _, v := range []string{"xchunked", "chunked, identity", "identity, chunked", "identity", "gzip, chunked", "chunked, chunked", "chunked,", ",chunked", "chunked;q=1", "\"chunked\"", "\x0bchunked", "chunked\x0b",
		"chunked\x00", "chunked\r\nTransfer-Encoding: cow", "cow\r\nTransfer-Encoding: chunked", "chunked\r\nTransfer-Encoding: chunked", "", "chunked\r\n X", "c\rhunked", "chünked"} {
		heads = append(heads, coding(v), good+coding(v), all+coding(v))
	}
	for _, line := range []string{"Transfer-Encoding : chunked\r\n", "Transfer-Encoding\t: chunked\r\n", " Transfer-Encoding: chunked\r\n", "Transfer-Encoding\r\n", "Transfer-Encoding:\x0bchunked\r\n", "Transfer-\x00Encoding: chunked\r\n"} {
		heads = append(heads, line, good+line)
		if line[0] != ' ' { // else it belongs to the line before
			heads = append(heads, line+good)
		}
	}
	// These two net/http accepts: the body is in chunks, and the connection ends.
	heads = append(heads, good+coding("chunked"), all+coding("chunked"), coding("chunked")+length("5"), coding("chunked"), coding("Chunked")+good, good+"X: a\nTransfer-Encoding: chunked\r\n")
	post := "POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nX-Request-Id: r1\r\n"
	for _, h := range heads {
		for name, b := range bodies {
			list = append(list, smuggling{fmt.Sprintf("%q %s", h, name), post + h + "\r\n" + b, true})
		}
	}
	for _, c := range []string{"0x%x\r\n", "+%x\r\n", "-%x\r\n", " %x\r\n", "%x\n", "%x\r", "%x\r\r\n", "%x;a\n", "%x;a=\"\n\"\r\n", "%x;\rb\r\n", "1000000000000000%x\r\n", "%x,\r\n", "\r\n%x\r\n", "_%x\r\n", "%x\x00\r\n"} {
		c = strings.ReplaceAll(c, "%x", fmt.Sprintf("%x", n))
		list = append(list, smuggling{fmt.Sprintf("chunk %q", c), post + coding("chunked") + "\r\n" + c + chatBody + "\r\n0\r\n\r\n" + evil, true})
	}
	for _, end := range []string{"0\r\n\r\n", "\n0\r\n\r\n", "XX0\r\n\r\n", "\r\n00000000000000000\r\n\r\n", "\r\n0\n\n", "\r\n0\r\nContent-Length: 5\r\n\r\n", "\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", "\r\n0\r\nX\r\n\r\n", "\r\n-0\r\n\r\n"} {
		list = append(list, smuggling{fmt.Sprintf("end %q", end), post + coding("chunked") + "\r\n" + fmt.Sprintf("%x\r\n", n) + chatBody + end + evil, true})
	}
	old := strings.Replace(post, "HTTP/1.1", "HTTP/1.0", 1) + "Connection: keep-alive\r\n"
	for name, b := range bodies {
		list = append(list, smuggling{"HTTP/1.0 with a coding " + name, old + good + coding("chunked") + "\r\n" + b, true},
			smuggling{"HTTP/0.9 " + name, "POST " + chat + "\r\n\r\n" + b, true},
			smuggling{"HTTP/1.1 twice " + name, strings.Replace(post, "HTTP/1.1", "HTTP/1.1 HTTP/1.1", 1) + good + "\r\n" + b, true},
			smuggling{"a line break in the target " + name, strings.Replace(post, chat, chat+"\rX", 1) + good + "\r\n" + b, true})
	}
	return append(list,
		smuggling{"two requests", post + good + "\r\n" + chatBody + evil, false},
		smuggling{"the same length twice", post + good + good + "\r\n" + chatBody + evil, false},
		smuggling{"a length with spaces", post + length(fmt.Sprintf("  %d \t", n)) + "\r\n" + chatBody + evil, false},
		smuggling{"a folded line", post + "X: a\r\n Transfer-Encoding: chunked\r\n" + good + "\r\n" + chatBody + evil, false},
		smuggling{"underscores", post + good + "Transfer_Encoding: chunked\r\nContent_Length: 5\r\n\r\n" + chatBody + evil, false},
		smuggling{"hop-by-hop names", post + good + "Connection: content-length, host, x-request-id, transfer-encoding\r\nTE: trailers\r\n\r\n" + chatBody + evil, false})
}

// TestSmuggling writes the corpus to a gateway before a simulated vLLM. What the model server saw are the requests that were
// answered, in their order, each well formed to a strict parser; and where a request's end can be argued about, nothing that
// follows it on the connection is taken for a request.
func TestSmuggling(t *testing.T) {
	sim, url := startSim(t)
	y := newRelay(t, url)
	r := newRig(t, []string{y.url})
	total := 0
	for _, c := range corpus() {
		conn, br := r.raw(c.send)
		var answered []string
		var err error
		for err == nil && (c.odd || len(answered) < 2) {
			var res *http.Response
			if res, err = http.ReadResponse(br, nil); err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				if id := res.Header.Get("x-pointsman-request-id"); res.StatusCode == 200 {
					answered = append(answered, id)
				}
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", c.name)
		}
		seen := y.take(t)
		if !slices.Equal(seen, answered) || c.odd && slices.Contains(seen, "evil") || !c.odd && len(seen) != 2 {
			t.Errorf("%s: the endpoint saw %q, the client was answered %q", c.name, seen, answered)
		}
		total += len(seen)
		conn.Close()
	}
	if n := sim.Stats().Requests; n != int64(total) {
		t.Errorf("the endpoint counts %d requests, its wire carried %d", n, total)
	}
	t.Logf("%d requests", len(corpus()))
	r.idle()
}

// TestPipelinedMix: many requests in one go on one connection, good and bad, are answered in their order, and each answer is
// that of its request.
func TestPipelinedMix(t *testing.T) {
	_, url := startSim(t)
	y := newRelay(t, url)
	r := newRig(t, []string{y.url})
	kinds := []struct {
		request string
		status  int
	}{
		{fmt.Sprintf("POST %s HTTP/1.1\r\n#Content-Length: %d\r\n\r\n%s", chat, len(chatBody), chatBody), 200},
		{"POST " + chat + " HTTP/1.1\r\n#Content-Length: 2\r\n\r\n{}", 400},
		{"POST /sleep HTTP/1.1\r\n#Content-Length: 4\r\n\r\nGET ", 404},
		{"GET /v1/models HTTP/1.1\r\n#\r\n", 200},
		{fmt.Sprintf("POST /v1/completions HTTP/1.1\r\n#Content-Length: %d\r\n\r\n%s", len(evilBody), evilBody), 200},
		{"DELETE " + chat + " HTTP/1.1\r\n#\r\n", 405},
	}
	var all strings.Builder
	const n = 60
	for i := range n {
		all.WriteString(strings.Replace(kinds[i*7%6].request, "#", fmt.Sprintf("Host: gw\r\nContent-Type: application/json\r\nX-Request-Id: r%d\r\n", i), 1))
	}
	_, br := r.raw(all.String())
	var want []string
	for i := range n {
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		id := fmt.Sprintf("r%d", i)
		if res.StatusCode != kinds[i*7%6].status || res.Header.Get("x-pointsman-request-id") != id {
			t.Fatalf("%s: status %d, id %q", id, res.StatusCode, res.Header.Get("x-pointsman-request-id"))
		}
		if k := i * 7 % 6; k == 0 || k == 4 {
			want = append(want, id)
		}
	}
	if seen := y.take(t); !slices.Equal(seen, want) {
		t.Errorf("the endpoint saw %q, want %q", seen, want)
	}
}
