package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/llmapi"
)

// wording is one refusal, for length or for something that looks like it.
type wording struct {
	name   string
	long   bool
	status int
	body   string
}

// wordings are those of all engines that we know of, and the recorded ones of vLLM.
func wordings(t *testing.T) (list []wording) {
	t.Helper()
	raw, err := os.ReadFile("../llmapi/testdata/refusals.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if p := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3); len(p) == 3 {
			status, _ := strconv.Atoi(p[1])
			list = append(list, wording{p[2][:min(40, len(p[2]))], p[0] == "long", status, p[2]})
		}
	}
	files, _ := filepath.Glob("../llmapi/testdata/*/http/err-*.response.http")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
		if err != nil || res.StatusCode < 400 || res.StatusCode == 404 || res.StatusCode == 405 {
			continue
		}
		body, _ := io.ReadAll(res.Body)
		name := filepath.Base(f)
		long := strings.Contains(name, "too-long") || strings.Contains(name, "text-huge") || strings.Contains(name, "exactly-max-len")
		list = append(list, wording{name, long, res.StatusCode, string(body)})
	}
	if len(list) < 60 {
		t.Fatalf("%d wordings", len(list))
	}
	return list
}

// Every engine's refusal for length goes to the large pool with the same bytes, streamed or not, as an answer or as the first
// event of a stream; every other refusal goes to the client and nowhere else.
func TestEveryWording(t *testing.T) {
	for _, w := range wordings(t) {
		if llmapi.Drainish(w.status, []byte(w.body)) {
			continue // nothing has run: another pool may take it
		}
		got := make(chan string, 4)
		refuse := status(w.status, w.body)
		if w.status == 200 {
			refuse = func(rw http.ResponseWriter, _ *http.Request) {
				answerStream(rw, fmt.Sprintf(`data: {"error":{"message":%q,"code":400}}`, w.body)+"\n\n", doneEvent)
			}
		}
		r, small, large := windows(t, sums(got, refuse), sums(got, func(rw http.ResponseWriter, q *http.Request) {
			if w.status == 200 {
				answerStream(rw, delta("yes"), finishStop, doneEvent)
				return
			}
			answerOK(rw, q)
		}), false)
		body := fmt.Sprintf(`{ "model" : "m","stream":%v, "messages":[{"role":"user","content":"%d ü \u00fc"}] }`, w.status == 200, rand.Int())
		if strings.Contains(w.name, "max-tokens-0") { // what a window that is exactly full says too
			body = strings.Replace(body, `{ "model"`, `{"max_tokens":0, "model"`, 1)
		}
		res := r.post(chat, body)
		text, err := read(res)
		rec := r.record()
		if <-got != sumOf(strings.Replace(body, `"m"`, `"m-2k"`, 1)) {
			t.Errorf("%s: the small pool got other bytes", w.name)
		}
		if !w.long {
			if large.served.Load() != 0 || text != w.body || res.StatusCode != w.status || rec["window"] != "" {
				t.Errorf("%s: served %d, status %d, record %v: %s", w.name, large.served.Load(), res.StatusCode, rec, text)
			}
			continue
		}
		if err != nil || res.StatusCode != 200 || small.served.Load() != 1 || large.served.Load() != 1 || rec["window"] != "resent" || rec["outcome"] != "ok" {
			t.Errorf("%s: %v, status %d, record %v: %s", w.name, err, res.StatusCode, rec, text)
			continue
		}
		if <-got != sumOf(strings.Replace(body, `"m"`, `"m-32k"`, 1)) {
			t.Errorf("%s: the large pool got other bytes", w.name)
		}
		r.idle()
	}
}

// In streams: each API's first event may be the refusal. When both pools refuse so, or there is no larger one, the client gets
// one error event with the code or the words that it knows.
func TestRefusedInsideStreams(t *testing.T) {
	const words = "The input (3000 tokens) is longer than the model's context length (2048 tokens)."
	event := `data: {"error":{"message":"` + words + `","type":"BadRequestError","code":400}}` + "\n\n"
	for path, c := range map[string]struct{ body, event, answer, code string }{
		chat:              {streamBody, event, delta("yes") + finishStop + doneEvent, `"code":"context_length_exceeded"`},
		"/v1/completions": {`{"model":"m","stream":true,"prompt":"x"}`, event, `data: {"choices":[{"index":0,"text":"yes","finish_reason":"stop"}]}` + "\n\n" + doneEvent, `"code":"context_length_exceeded"`},
		"/v1/messages": {`{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}`,
			"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"BadRequestError\",\"message\":\"" + words + "\"}}\n\n",
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", `prompt is too long: `},
		"/v1/responses": {`{"model":"m","stream":true,"input":"x"}`, "event: error\ndata: {\"type\":\"error\",\"code\":400,\"message\":\"" + words + "\"}\n\n",
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\"}}\n\n", `"code":"context_length_exceeded"`},
	} {
		refuse := func(w http.ResponseWriter, _ *http.Request) { answerStream(w, c.event[:20], c.event[20:]) }
		r, _, large := windows(t, refuse, func(w http.ResponseWriter, _ *http.Request) { answerStream(w, c.answer) }, false)
		if text, err := read(r.post(path, c.body)); err != nil || text != c.answer || large.served.Load() != 1 {
			t.Errorf("%s: %v, served %d: %s", path, err, large.served.Load(), text)
		}
		if rec := r.record(); rec["window"] != "resent" || rec["outcome"] != "ok" {
			t.Errorf("%s: record %v", path, rec)
		}
		for name, second := range map[string]http.HandlerFunc{"stream": refuse, "answer": status(400, `{"error":{"message":"`+words+`"}}`)} {
			r, _, _ := windows(t, refuse, second, false)
			text, _ := read(r.post(path, c.body))
			if !strings.Contains(text, c.code) || !strings.Contains(text, words) || strings.Contains(text, "[DONE]") {
				t.Errorf("%s, refused by all, the last by its %s: %s", path, name, text)
			}
			if rec := r.record(); rec["window"] != "refused" || rec["outcome"] != "too_long" {
				t.Errorf("%s, %s: record %v", path, name, rec)
			}
			r.idle()
		}
		one := newRig(t, []string{newEndpoint(t, refuse).URL})
		if text, _ := read(one.post(path, c.body)); !strings.Contains(text, c.code) {
			t.Errorf("%s, one pool: %s", path, text)
		}
	}
}

// A pool whose endpoints cannot be reached hands on at once, and a second pick after an overflow takes any endpoint.
func TestUnreachablePoolHandsOn(t *testing.T) {
	r, small, large := windows(t, answerOK, answerOK, false)
	small.Close()
	if res := r.post(chat, chatBody); res.StatusCode != 200 || large.served.Load() != 1 {
		t.Errorf("status %d, the large pool served %d", res.StatusCode, large.served.Load())
	}
	if rec := r.record(); rec["window"] != "no_endpoint" || rec["pool"] != "large" {
		t.Errorf("record %v", rec)
	}
	large.Close()
	if res := r.post(chat, chatBody); res.StatusCode != 503 {
		t.Errorf("status %d with both away", res.StatusCode)
	}
	r.idle()
}

// What continues a stored response stays in the pool that keeps it, and is told there that it is too long.
func TestStoredResponsesStay(t *testing.T) {
	r, _, large := windows(t, func(w http.ResponseWriter, q *http.Request) {
		if body, _ := io.ReadAll(q.Body); strings.Contains(string(body), "previous_response_id") {
			answerJSON(w, 400, `{"error":{"message":"This model's maximum context length is 2048 tokens.","code":400}}`)
			return
		}
		answerJSON(w, 200, `{"id":"resp_7","object":"response","status":"completed","output":[]}`)
	}, answerOK, false)
	if text, _ := read(r.post("/v1/responses", `{"model":"m","input":"x"}`)); !strings.Contains(text, "resp_7") {
		t.Fatal(text)
	}
	res := r.post("/v1/responses", `{"model":"m","previous_response_id":"resp_7","input":"`+strings.Repeat("the quick brown fox ", 1000)+`"}`)
	if text, _ := read(res); res.StatusCode != 400 || !strings.Contains(text, "context_length_exceeded") || large.served.Load() != 0 {
		t.Errorf("status %d, the large pool served %d: %s", res.StatusCode, large.served.Load(), text)
	}
}

// Randomised: each turn of a growing conversation goes to the small pool as long as it fits, from the exact turn on at which it does not,
// to the large one, whatever the estimates have learnt by then.
func TestConversationsMoveOnTheExactTurn(t *testing.T) {
	engine := func(window int) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			body, _ := io.ReadAll(q.Body)
			n := len(body) / 3
			if n >= window {
				answerJSON(w, 400, fmt.Sprintf(`{"error":{"message":"This model's maximum context length is %d tokens. However, your prompt contains %d input tokens.","code":400}}`, window, n))
				return
			}
			answerJSON(w, 200, fmt.Sprintf(`{"choices":[{"index":0,"message":{"role":"assistant","content":"%d"},"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}}`, window, n, n+1))
		}
	}
	r, small, large := windows(t, engine(2048), engine(32768), false)
	rnd := rand.New(rand.NewPCG(3, 4))
	turns, asked := 0, int64(0)
	for range 40 {
		said := ""
		for len(said) < 12000 {
			said += strings.Repeat([]string{"word ", "slovo, ", "字符", "        ", "x=f(y);"}[rnd.IntN(5)], 40+rnd.IntN(200))
			body := `{"model":"m","messages":[{"role":"user","content":"` + said + `"}]}`
			fits := (len(body)+len("m-2k")-1)/3 < 2048
			res := r.post(chat, body)
			text, err := read(res)
			rec := r.record()
			turns++
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("%v, status %d, record %v: %s", err, res.StatusCode, rec, text)
			}
			if fits != (rec["pool"] == "small") && rec["window"] != "direct" {
				t.Errorf("%d bytes: fits %v, record %v", len(body), fits, rec)
			}
			if fits && rec["window"] == "direct" {
				asked++ // an estimate that was surer than it should have been
			}
		}
	}
	t.Logf("%d turns, small served %d, large %d; %d that fit passed the small pool by", turns, small.served.Load(), large.served.Load(), asked)
	if asked > int64(turns)/50 {
		t.Errorf("%d of %d turns that fit went past the small pool", asked, turns)
	}
	r.idle()
}
