package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sseEvent is what a client's parser hands on.
type sseEvent struct{ Name, ID, Data string }

// parseSSE is the parser of the WHATWG specification, which every client has in some form. With lines it takes each line of
// data for an event, as clients do that servers without blank lines were made for.
func parseSSE(body string, lines bool) (list []sseEvent) {
	body = strings.TrimPrefix(body, "\xef\xbb\xbf")
	var e sseEvent
	var data []string
	all := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body), "\n")
	for _, line := range all[:len(all)-1] { // what follows the last line break is no line
		if line == "" {
			if len(data) > 0 {
				e.Data = strings.Join(data, "\n")
				list = append(list, e)
			}
			e, data = sseEvent{ID: e.ID}, nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			e.Name = value
		case field == "id" && !strings.Contains(value, "\x00"):
			e.ID = value
		case field == "data" && lines:
			list = append(list, sseEvent{Data: value})
		case field == "data":
			data = append(data, value)
		}
	}
	return list
}

// usageIn is what the events of a chat say of tokens: the last usage, and one for each piece of text since.
func usageIn(events []sseEvent) (prompt, output int) {
	for _, e := range events {
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				Prompt int `json:"prompt_tokens"`
				Output int `json:"completion_tokens"`
			}
		}
		if json.Unmarshal([]byte(e.Data), &chunk) != nil {
			continue
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != "" {
				output++
			}
		}
		if chunk.Usage != nil {
			prompt, output = chunk.Usage.Prompt, chunk.Usage.Output
		}
	}
	return prompt, output
}

// composer makes a chat stream out of any bytes: they choose the framing, the texts and where it is cut into writes.
type composer struct {
	seed  []byte
	lines bool // no blank lines
	brk   string
	out   strings.Builder
}

func (c *composer) next() int {
	if len(c.seed) == 0 {
		return 0
	}
	b := c.seed[0]
	c.seed = c.seed[1:]
	return int(b)
}

func (c *composer) text(n int) string {
	n = min(n, len(c.seed))
	s := string(c.seed[:n])
	c.seed = c.seed[n:]
	return s
}

// line writes a line; what would end it early is left out.
func (c *composer) line(s string) {
	c.out.WriteString(strings.NewReplacer("\r", "", "\n", "").Replace(s) + c.brk)
}

// event writes an event of one JSON value.
func (c *composer) event(v string) {
	data := []string{"data: ", "data:"}[c.next()%2]
	if how := c.next(); how%4 == 0 && !c.lines {
		c.line(data + v[:1])
		v = v[1:]
	}
	c.line(data + v)
	c.blank()
}

func (c *composer) blank() {
	if !c.lines {
		c.out.WriteString(c.brk)
	}
}

// piece writes something that a server may send.
func (c *composer) piece() {
	switch c.next() % 8 {
	case 0, 1, 2:
		text, _ := json.Marshal("x" + c.text(c.next()%16))
		usage := ""
		if n := c.next(); n%3 == 0 {
			usage = fmt.Sprintf(`,"usage":{"prompt_tokens":7,"completion_tokens":%d}`, n)
		}
		c.event(fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]%s}`, text, usage))
	case 3:
		c.line(":" + c.text(c.next()%16))
	case 4:
		c.line("id: " + c.text(3))
	case 5:
		c.line("retry: 10")
		c.line("unknown" + strings.ReplaceAll(c.text(4), ":", ""))
	case 6:
		c.event(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, c.next(), c.next()))
	case 7:
		c.blank()
	}
}

// compose returns the stream, and whether it has no blank lines.
func compose(seed []byte) (string, bool) {
	c := &composer{seed: seed}
	c.lines = c.next()%4 == 0
	c.brk = []string{"\n", "\r\n", "\r"}[c.next()%3]
	for i := 0; len(c.seed) > 0 && i < 64; i++ {
		c.piece()
	}
	c.event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	if c.next()%2 == 0 {
		c.line("data: [DONE]")
		c.blank()
	}
	return c.out.String(), c.lines
}

// split cuts a stream into writes at places that the seed says.
func split(s string, seed []byte) (pieces []string) {
	for i := 0; s != ""; i++ {
		n := len(s)
		if i < len(seed) {
			n = min(n, 1+int(seed[i])%40)
		}
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return pieces
}

// FuzzFraming sends streams of every framing, and bytes that are none, through the gateway. Of a whole stream the client gets
// the same bytes, and the record says of tokens what a strict parser finds in them. Of anything else it gets no byte that the
// endpoint did not send, save the error at the end.
func FuzzFraming(f *testing.F) {
	f.Add([]byte("\x01\x00\x00hello"), []byte("\x05\x01\x01"), false)
	f.Add([]byte("\x00\x01\x06\x09\x03\x00\x02\x02"), []byte{}, false)
	f.Add([]byte("\x01\x02\x00\x05\xc3\xa4\"\\\x00\x06\x07\x07\x04abc"), []byte("\x00\x00\x00\x00\x00\x00\x00\x00"), false)
	f.Add([]byte(delta("a")+"data: [done] \r\ndata: x"), []byte("\x10\x02"), true)
	f.Add([]byte(usageEvent+doneEvent), []byte("\x03"), true)
	f.Add([]byte(delta("a")+finishAbort), []byte("\x03\x27\x27"), true)
	var now atomic.Pointer[[]string]
	ep := newEndpoint(f, func(w http.ResponseWriter, r *http.Request) { answerStream(w, *now.Load()...) })
	r := newRig(f, []string{ep.URL})
	f.Fuzz(func(t *testing.T, seed, cuts []byte, raw bool) {
		r.t = t
		sent, lines := string(seed), false
		if !raw {
			sent, lines = compose(seed)
		}
		pieces := split(sent, cuts)
		now.Store(&pieces)
		res := r.post(chat, streamBody)
		got, err := read(res)
		rec := r.record()
		if !raw || rec["outcome"] == "ok" {
			if got != sent || err != nil || rec["outcome"] != "ok" {
				t.Fatalf("%v, record %v\n%s", err, rec, cmp.Diff(sent, got))
			}
		}
		if !raw {
			prompt, output := usageIn(parseSSE(sent, lines))
			if p, o := number(rec["prompt_tokens"]), number(rec["output_tokens"]); prompt > 0 && p != prompt || o != output {
				t.Fatalf("read %d and %d tokens, a strict parser %d and %d\n%q", p, o, prompt, output, sent)
			}
			return
		}
		if rec["outcome"] == "ok" {
			return
		}
		kept := strings.TrimRight(got, "\n")
		if at := strings.LastIndex(kept, `data: {"error"`); at >= 0 && !strings.HasPrefix(sent, kept) {
			kept = strings.TrimRight(got[:at], "\n")
		}
		if !strings.HasPrefix(sent, kept) {
			t.Fatalf("the client got bytes that were not sent\nsent %q\ngot  %q", sent, got)
		}
	})
}

func number(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// TestKeepAliveSplits: however an endpoint's writes cut its stream, and however long it pauses between two of them, a client's
// parser finds the events that were sent, and nothing else.
func TestKeepAliveSplits(t *testing.T) {
	const alive = ": keep-alive\n\n"
	kept := 0
	for n := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(n, 1))
			seed, cuts := make([]byte, 120), make([]byte, 60)
			for i := range seed {
				seed[i] = byte(rng.Uint32())
			}
			for i := range cuts {
				cuts[i] = byte(rng.Uint32())
			}
			sent, lines := compose(seed)
			b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
				answerStream(w)
				for _, piece := range split(sent, cuts) {
					time.Sleep(20 * time.Second)
					_, _ = io.WriteString(w, piece)
					_ = http.NewResponseController(w).Flush()
				}
			}, func(c *Config) { c.KeepAlive = 15 * time.Second })
			_, _, got, err := b.post(streamBody)
			if rec := <-b.records; err != nil || rec["outcome"] != "ok" || strings.ReplaceAll(got, alive, "") != sent {
				t.Fatalf("%d: %v, record %v\n%s", n, err, rec, cmp.Diff(sent, got))
			}
			if d := cmp.Diff(parseSSE(sent, lines), parseSSE(got, lines)); d != "" {
				t.Errorf("%d: other events:\n%s\n%q", n, d, got)
			}
			kept += strings.Count(got, alive)
			b.idle()
			b.stop()
		})
	}
	if kept < 1000 {
		t.Errorf("%d keep-alives in all: the pauses were not filled", kept)
	}
}
