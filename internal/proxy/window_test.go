package proxy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
)

// windows is a rig with a pool of 2,048 tokens before one of 32,768, which know the model by the names m-2k and m-32k.
func windows(t *testing.T, small, large http.HandlerFunc, overflow bool, change ...func(*Config)) (*rig, *endpoint, *endpoint) {
	t.Helper()
	r := newRig(t, nil, change...)
	var pools []*pool.Pool
	var played []*endpoint
	for i, h := range []http.HandlerFunc{small, large} {
		ep := newEndpoint(t, h)
		name, window := []string{"small", "large"}[i], []int{2048, 32768}[i]
		p := pool.New(pool.Config{Name: name, Overflow: overflow && i == 0}, nil, nil)
		p.SetTargets([]discover.Target{{URL: ep.URL}})
		p.Learned(ep.URL, pool.Facts{Models: []pool.Model{{ID: []string{"m-2k", "m-32k"}[i], MaxModelLen: window}}})
		pools, played = append(pools, p), append(played, ep)
	}
	r.pool = pools[0]
	r.dir.Set(pools, []pool.Alias{{Name: "m", Pools: []pool.AliasPool{{Pool: "small", Serves: "m-2k"}, {Pool: "large", Serves: "m-32k"}}}})
	return r, played[0], played[1]
}

// sums reads bodies and hands their hashes on before it answers.
func sums(to chan<- string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		to <- fmt.Sprintf("%x", sha256.Sum256(body))
		answer(w, r)
	}
}

func sumOf(body string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(body))) }

// A prompt that the small pool's engine refuses for length is answered by the large one, which gets the same bytes but for the
// model's name; what is refused for another reason goes nowhere else.
func TestResentToTheLargerWindow(t *testing.T) {
	refusal := `{"error":{"message":"This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens. Please reduce the length of the input messages.","type":"BadRequestError","param":"input_tokens","code":400}}`
	for _, c := range []struct {
		name    string
		refuse  http.HandlerFunc
		stream  bool
		resent  bool
		outcome string
	}{
		{"refused", status(400, refusal), false, true, "ok"},
		{"refused, streamed", status(400, refusal), true, true, "ok"},
		{"refused by the first event", func(w http.ResponseWriter, _ *http.Request) {
			answerStream(w, `data: {"error":{"message":"The input (3000 tokens) is longer than the model's context length (2048 tokens).","type":"BadRequestError","code":400}}`+"\n\n", doneEvent)
		}, true, true, "ok"},
		{"another mistake", status(400, `{"error":{"message":"temperature must be non-negative, got -1.0.","type":"BadRequestError","code":400}}`), false, false, "client_error"},
		{"a failure", status(500, `{"error":{"message":"out of memory","code":500}}`), false, false, "upstream_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan string, 8)
			answer := answerOK
			body := strings.Replace(chatBody, "hello", "a long hello ü", 1)
			if c.stream {
				answer = func(w http.ResponseWriter, _ *http.Request) { answerStream(w, delta("yes"), finishStop, doneEvent) }
				body = strings.Replace(streamBody, "hello", "a long hello ü", 1)
			}
			r, small, large := windows(t, sums(got, c.refuse), sums(got, answer), false)
			res := r.post(chat, body)
			text, err := read(res)
			rec := r.record()
			if err != nil || rec["outcome"] != c.outcome || small.served.Load() != 1 || large.served.Load() != map[bool]int64{true: 1}[c.resent] {
				t.Fatalf("%v, record %v, served %d and %d: %s", err, rec, small.served.Load(), large.served.Load(), text)
			}
			if s := <-got; s != sumOf(strings.Replace(body, `"m"`, `"m-2k"`, 1)) {
				t.Error("the small pool got other bytes")
			}
			if c.resent {
				if s := <-got; s != sumOf(strings.Replace(body, `"m"`, `"m-32k"`, 1)) {
					t.Error("the large pool got other bytes")
				}
				if res.StatusCode != 200 || rec["pool"] != "large" || rec["window"] != "resent" || rec["refused_by"] != "small" || strings.Contains(text, "error") {
					t.Errorf("status %d, record %v: %s", res.StatusCode, rec, text)
				}
			}
			r.idle()
		})
	}
}

// When every pool refuses, the client gets the largest one's words in one shape, whichever way the engine said it.
func TestRefusedByAll(t *testing.T) {
	small := status(400, `{"object":"error","message":"This model's maximum context length is 2048 tokens.","type":"BadRequestError","param":null,"code":400}`)
	for name, large := range map[string]http.HandlerFunc{
		"nested":    status(400, `{"error":{"message":"This model's maximum context length is 32768 tokens.","type":"BadRequestError","code":400}}`),
		"flat":      status(413, `{"object":"error","message":"This model's maximum context length is 32768 tokens.","code":413}`),
		"text":      status(422, `{"error":"This model's maximum context length is 32768 tokens.","error_type":"validation"}`),
		"a failure": status(500, `{"error":{"message":"This model's maximum context length is 32768 tokens.","type":"exceed_context_size_error","code":500}}`),
	} {
		for _, path := range []string{chat, "/v1/messages"} {
			r, _, ep := windows(t, small, large, false)
			res := r.post(path, chatBody)
			text, err := read(res)
			want := `{"error":{"message":"This model's maximum context length is 32768 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`
			if path != chat {
				want = `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: This model's maximum context length is 32768 tokens."}}`
			}
			if err != nil || res.StatusCode != 400 || text != want || ep.served.Load() != 1 || res.Header.Get(headerReason) != "too_long" {
				t.Errorf("%s, %s: %v, status %d, served %d\ngot  %s\nwant %s", name, path, err, res.StatusCode, ep.served.Load(), text, want)
			}
			if rec := r.record(); rec["outcome"] != "too_long" || rec["window"] != "refused" {
				t.Errorf("%s: record %v", name, rec)
			}
			r.idle()
		}
	}
}

// A prompt that certainly exceeds the small window does not trouble it; one that may fit does, whatever an image weighs.
func TestCertainMisfits(t *testing.T) {
	for _, c := range []struct {
		name, body string
		small      int64
	}{
		{"short", chatBody, 1},
		{"long English", strings.Replace(chatBody, "hello", strings.Repeat("the quick brown fox ", 1000), 1), 0},
		{"long Chinese", strings.Replace(chatBody, "hello", strings.Repeat("敏捷的棕色狐狸", 800), 1), 0},
		{"long Chinese, escaped", strings.Replace(chatBody, "hello", strings.Repeat(`\u654f\u6377\u7684\u68d5`, 1400), 1), 0},
		{"a large image", strings.Replace(chatBody, `"hello"`, `[{"type":"image_url","image_url":{"url":"data:image/png;base64,`+strings.Repeat("iVBOR", 20000)+`"}}]`, 1), 1},
		{"token ids", `{"model":"m","prompt":[` + strings.Repeat("5,", 2100) + `5]}`, 0},
		{"fewer token ids", `{"model":"m","prompt":[` + strings.Repeat("5,", 1900) + `5]}`, 1},
		{"more output than the window", strings.Replace(chatBody, `{"model"`, `{"max_tokens":4000,"model"`, 1), 0},
		{"output that the engine will cut short", strings.Replace(chatBody, `{"model"`, `{"max_tokens":2040,"model"`, 1), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, small, large := windows(t, answerOK, answerOK, false)
			path := chat
			if strings.Contains(c.body, `"prompt"`) {
				path = "/v1/completions"
			}
			res := r.post(path, c.body)
			if text, _ := read(res); res.StatusCode != 200 || small.served.Load() != c.small || large.served.Load() != 1-c.small {
				t.Errorf("status %d, served %d and %d: %s", res.StatusCode, small.served.Load(), large.served.Load(), text)
			}
			if rec := r.record(); (rec["window"] == "direct") != (c.small == 0) {
				t.Errorf("record %v", rec)
			}
		})
	}
}

// A busy small pool keeps its requests unless it may overflow, and then they go up only while there is room.
func TestOverflow(t *testing.T) {
	for _, overflow := range []bool{false, true} {
		r, small, large := windows(t, answerOK, answerOK, overflow)
		busy := func(p *pool.Pool, url string, waiting float64) {
			rep := pool.EmptyReport()
			rep.Running, rep.Waiting, rep.KVUsage = 8, waiting, 0.2
			p.Report(url, rep)
		}
		pools := r.dir.Pools()
		ask := func() {
			if _, err := read(r.post(chat, chatBody)); err != nil {
				t.Fatal(err)
			}
		}
		busy(pools[0], small.URL, 5)
		busy(pools[1], large.URL, 0)
		ask()
		rec := r.record()
		if up := large.served.Load() == 1; up != overflow || (rec["window"] == "overflow") != overflow {
			t.Errorf("overflow %v: served %d and %d, record %v", overflow, small.served.Load(), large.served.Load(), rec)
		}
		busy(pools[1], large.URL, 5)
		before := small.served.Load()
		ask()
		if rec := r.record(); small.served.Load() != before+1 || rec["pool"] != "small" {
			t.Errorf("overflow %v: with both full: %v", overflow, rec)
		}
		r.idle()
	}
}

// Without a usable endpoint of the small window the large one serves; never the other way round.
func TestEmptyPools(t *testing.T) {
	r, small, large := windows(t, answerOK, answerOK, false)
	pools := r.dir.Pools()
	pools[0].SetTargets(nil)
	if res := r.post(chat, chatBody); res.StatusCode != 200 || large.served.Load() != 1 {
		t.Errorf("status %d, the large pool served %d", res.StatusCode, large.served.Load())
	}
	pools[0].SetTargets([]discover.Target{{URL: small.URL}})
	pools[0].Learned(small.URL, pool.Facts{Models: []pool.Model{{ID: "m-2k", MaxModelLen: 2048}}})
	pools[1].SetTargets(nil)
	res := r.post(chat, strings.Replace(chatBody, "hello", strings.Repeat("the quick brown fox ", 1000), 1))
	if text, _ := read(res); res.StatusCode != 503 || res.Header.Get(headerReason) != llmapi.ReasonNoEndpoint || small.served.Load() != 0 {
		t.Errorf("status %d, the small pool served %d: %s", res.StatusCode, small.served.Load(), text)
	}
}
