package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestOddBodies: bodies on which parsers differ either reach the endpoint byte for byte or are refused with the reason and the
// key. Each goes plain and chunked with a trailer, and packed in both codings: what holds for the bytes holds for what they hold.
func TestOddBodies(t *testing.T) {
	msg := func(text string) string {
		return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
	}
	deep := func(n int) string {
		return `{"model":"m","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `,"messages":[]}`
	}
	for _, c := range []struct {
		name, body string
		reason     string // "": it passes
		param      string
	}{
		{"a lone surrogate", msg(`\ud800 and \udc00`), "", ""},
		{"a surrogate in a key", `{"model":"m","\ud83d":1,"messages":[]}`, "", ""},
		{"no UTF-8 in a text", msg("\xff\xfe\xc3"), "", ""},
		{"no UTF-8 in the model", "{\"model\":\"m\xff\",\"messages\":[]}", "unknown_model", "model"},
		{"a NUL in a text", msg(`\u0000`), "", ""},
		{"a control byte in a text", msg("\x01"), "", ""}, // the endpoint's to judge
		{"nesting of 100", deep(100), "", ""},
		{"nesting of 100000", deep(100_000), "bad_json", ""},
		{"nesting without end", `{"model":"m","x":` + strings.Repeat(`{"a":`, 100_000), "bad_json", ""},
		{"numbers beyond every type", `{"model":"m","seed":1e999999,"x":-0.0000000000000000000001E-400,"y":123456789012345678901234567890,"messages":[]}`, "", ""},
		{"NaN", `{"model":"m","temperature":NaN,"messages":[]}`, "bad_json", ""},
		{"a byte order mark", "\xef\xbb\xbf" + chatBody, "bad_json", ""},
		{"UTF-16", "\xff\xfe{\x00}\x00", "bad_json", ""},
		{"two values", chatBody + chatBody, "bad_json", ""},
		{"text behind the value", chatBody + "x", "bad_json", ""},
		{"a comment", `{"model":"m"/* x */,"messages":[]}`, "bad_json", ""},
		{"a comma too many", `{"model":"m","messages":[],}`, "bad_json", ""},
		{"an array", `[` + chatBody + `]`, "bad_json", ""},
		{"model twice", `{"model":"m","messages":[],"model":"org/model-b"}`, "duplicate_key", "model"},
		{"model twice, once escaped", `{"model":"m","messages":[],"mod\u0065l":"org/model-b"}`, "duplicate_key", "model"},
		{"model twice, the first empty", `{"model":"","messages":[],"model":"m"}`, "duplicate_key", "model"},
		{"stream twice", `{"model":"m","stream":true,"messages":[],"stream":false}`, "duplicate_key", "stream"},
		{"messages twice", `{"model":"m","messages":[],"messages":[{"role":"user","content":"x"}]}`, "duplicate_key", "messages"},
		{"max_tokens twice", `{"model":"m","max_tokens":1,"messages":[],"max_tokens":100000}`, "duplicate_key", "max_tokens"},
		{"a key of another case", `{"model":"m","Model":"org/model-b","messages":[]}`, "", ""},
		{"an unknown key twice", `{"model":"m","x":1,"x":2,"messages":[]}`, "", ""},
		{"model twice, deeper", `{"model":"m","metadata":{"model":"a","model":"b"},"messages":[]}`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan *http.Request, 4)
			ep := newEndpoint(t, echo(got))
			r := newRig(t, []string{ep.URL})
			for _, coding := range []string{"", "chunked", "gzip", "zstd"} {
				body := pack(t, coding, c.body)
				head := "Content-Encoding: " + coding + "\r\n"
				if coding == "" || coding == "chunked" {
					head = ""
				}
				framed := fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
				if coding == "chunked" {
					half := len(body) / 2
					framed = fmt.Sprintf("Trailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n%x;ext=\"a\"\r\n%s\r\n%x\r\n%s\r\n0\r\nX-T: v\r\nContent-Length: 3\r\n\r\n", half, body[:half], len(body)-half, body[half:])
				}
				_, br := r.raw("POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nConnection: close\r\n" + framed)
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := read(res)
				if c.reason != "" {
					if reason := res.Header.Get("x-pointsman-reason"); reason != c.reason || res.StatusCode/100 != 4 || !strings.Contains(text, `"param":`+param(c.param)) {
						t.Errorf("%s: status %d, reason %q: %.300s", coding, res.StatusCode, reason, text)
					}
					continue
				}
				if res.StatusCode != 200 {
					t.Errorf("%s: status %d: %.300s", coding, res.StatusCode, text)
					continue
				}
				in := <-got
				if b := bodyOf(t, in); b != body || in.ContentLength != int64(len(body)) || in.Header.Get("X-T") != "" || len(in.Trailer) > 0 {
					t.Errorf("%s: the endpoint got %.80q, want %.80q; trailers %v", coding, b, body, in.Trailer)
				}
			}
			if n := ep.served.Load(); c.reason != "" && n != 0 {
				t.Errorf("the endpoint served %d", n)
			}
			r.idle()
		})
	}
}

// param is the member as an error's body has it.
func param(s string) string {
	if s == "" {
		return "null"
	}
	return `"` + s + `"`
}

func pack(t *testing.T, coding, s string) string {
	t.Helper()
	var b bytes.Buffer
	switch coding {
	case "gzip":
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, s)
		_ = z.Close()
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(z, s)
		_ = z.Close()
	default:
		return s
	}
	return b.String()
}
