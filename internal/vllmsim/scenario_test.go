package vllmsim

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
)

func streamBody(tokens int) string {
	return fmt.Sprintf(`{"stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true}}`, tokens)
}

// TestKeepAlive: an idle kept connection ends after exactly 5.0 s; one that never sent a request stays.
func TestKeepAlive(t *testing.T) {
	for _, c := range []struct {
		idle  time.Duration
		conns int64
	}{{4990 * time.Millisecond, 1}, {5001 * time.Millisecond, 2}} {
		bubble(t, tiny(), func(f *fixture) {
			f.get("/health")
			time.Sleep(c.idle)
			f.get("/health")
			f.want(fmt.Sprint("connections after an idle time of ", c.idle), f.s.Stats().Connections, c.conns)
		})
	}
	bubble(t, tiny(), func(f *fixture) {
		conn, err := f.ln.Dial(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		go func() { _, _ = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") }()
		reply, _ := io.ReadAll(conn)
		f.want("status on a connection that was silent for 30 s", strings.HasPrefix(string(reply), "HTTP/1.1 200 OK"), true)
	})
}

// TestHeadersBeforeTokens: the headers leave at once, also while the request waits for a slot; the role comes with the
// first token.
func TestHeadersBeforeTokens(t *testing.T) {
	cfg := tiny()
	cfg.MaxNumSeqs = 1
	bubble(t, cfg, func(f *fixture) {
		first := f.open(chatPath, streamBody(200))
		begin := time.Now()
		second := f.open(chatPath, streamBody(1))
		f.want("time to the headers of a waiting request", time.Since(begin), time.Duration(0))
		time.Sleep(100 * time.Millisecond)
		f.want("frames of the waiting request", len(second.frames), 0)
		f.want("waiting", f.gauge("vllm:num_requests_waiting"), 1.0)
		f.want("frames of the first", len(first.all()), 200+3) // role, usage, [DONE]
		f.want("frames of the second", len(second.all()), 1+3)
	})
}

// TestClientAbort: a client that leaves frees its request with the next step, in the batch and in the queue, and no counter
// of finished requests moves.
func TestClientAbort(t *testing.T) {
	cfg := tiny()
	cfg.MaxNumSeqs = 1
	bubble(t, cfg, func(f *fixture) {
		running := f.open(chatPath, streamBody(1000))
		waiting := f.open(textPath, `{"stream":true,"max_tokens":1000,"prompt":"x"}`)
		time.Sleep(100 * time.Millisecond)
		waiting.cancel()
		time.Sleep(50 * time.Millisecond)
		f.want("waiting 50 ms after its client left", f.gauge("vllm:num_requests_waiting"), 0.0)
		f.want("running", f.gauge("vllm:num_requests_running"), 1.0)
		running.cancel()
		time.Sleep(50 * time.Millisecond)
		f.want("running 50 ms after its client left", f.gauge("vllm:num_requests_running"), 0.0)
		f.want("kv usage", f.gauge("vllm:kv_cache_usage_perc"), 0.0)
		f.want("aborted", f.s.Stats().Aborted, int64(2))
		f.want("in flight", f.s.Stats().InFlight, int64(0))
		_, page := f.get("/metrics")
		for _, reason := range []string{"stop", "length", "abort"} {
			if !strings.Contains(page, `finished_reason="`+reason+`",model_name="tiny"} 0.0`) {
				t.Errorf("a client's abort was counted as %s", reason)
			}
		}
	})
}

// TestSigterm: without a drain, open answers get no further byte and no end; /health says 503 at once, the port closes, and
// the server ends when its clients have left.
func TestSigterm(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(1000))
		time.Sleep(100 * time.Millisecond)
		f.s.Terminate()
		time.Sleep(30 * time.Millisecond)
		code, _ := f.get("/health")
		f.want("/health after 30 ms", code, http.StatusServiceUnavailable)
		seen := len(st.frames)
		time.Sleep(400 * time.Millisecond)
		_, _, err := f.post(chatPath, streamBody(1))
		f.want("refused after 430 ms", err != nil && strings.Contains(err.Error(), "connection refused"), true)
		time.Sleep(25 * time.Second)
		f.want("frames in the 25 s after", len(st.frames), seen)
		select {
		case err := <-f.served:
			t.Errorf("the server ended before its client left: %v", err)
		default:
		}
		st.cancel()
		time.Sleep(time.Second)
		select {
		case err := <-f.served:
			f.want("end of Serve", err, error(nil))
		default:
			t.Error("the server did not end after its client left")
		}
	})
}

// TestDrain: with a shutdown timeout, /health stays 200, running streams end normally, new text requests get 500, token ids
// get a stream without choices.
func TestDrain(t *testing.T) {
	cfg := tiny()
	cfg.ShutdownTimeout = 8 * time.Second
	bubble(t, cfg, func(f *fixture) {
		st := f.open(chatPath, streamBody(700))
		time.Sleep(100 * time.Millisecond)
		f.s.Terminate()
		time.Sleep(time.Second)
		code, _ := f.get("/health")
		f.want("/health while draining", code, http.StatusOK)
		code, body := f.call(chatPath, streamBody(5))
		f.want("text request while draining", code, http.StatusInternalServerError)
		f.want("its body", body, `{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`)
		ids := f.open(textPath, `{"stream":true,"max_tokens":5,"prompt":[1,2,3],"stream_options":{"include_usage":true}}`)
		frames := ids.all()
		f.want("token ids while draining: frames", len(frames), 2)
		f.want("no choices", strings.Contains(frames[0], `"choices":[],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0`), true)
		f.want("frames of the running stream", len(st.all()), 700+3)
		time.Sleep(8 * time.Second)
		_, _, err := f.post(chatPath, streamBody(1))
		f.want("refused after the drain", err != nil, true)
	})
}

// TestEngineKilled: answers end with an error, /health says 503, the port closes, the server exits within 1.6 s.
func TestEngineKilled(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(1000))
		type answer struct {
			code int
			body string
		}
		whole := make(chan answer, 1)
		go func() {
			code, body := f.call(chatPath, `{"max_tokens":1000,"messages":[{"role":"user","content":"hi"}]}`)
			whole <- answer{code, body}
		}()
		messages := f.open("/v1/messages", `{"stream":true,"max_tokens":1000,"messages":[{"role":"user","content":"hi"}]}`)
		time.Sleep(100 * time.Millisecond)
		f.s.KillEngine()
		begin := time.Now()
		frames := st.all()
		f.want("end of the stream after", time.Since(begin), deadStreams)
		f.want("error frame", frames[len(frames)-2],
			`{"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}`)
		f.want("last frame", frames[len(frames)-1], "[DONE]")
		f.want("clean end", st.err, io.EOF)
		f.want("answer without stream", <-whole, answer{500,
			`{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}`})
		events := messages.all()
		f.want("Anthropic error", events[len(events)-1],
			`{"type":"error","error":{"type":"internal_error","message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}`)
		code, _ := f.get("/health")
		f.want("/health", code, http.StatusServiceUnavailable)
		time.Sleep(2 * time.Second)
		f.want("end of Serve", <-f.served, error(nil))
	})
}

// TestZombie: the engine is gone and the front-end has not noticed: /health 200, gauges frozen, answers silent, new ones get
// headers and nothing.
func TestZombie(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(100))
		time.Sleep(50 * time.Millisecond)
		f.s.SetFault(Fault{Kind: FaultZombie, For: time.Minute})
		time.Sleep(time.Second)
		seen, generated := len(st.frames), f.gauge("vllm:generation_tokens_total")
		late := f.open(chatPath, streamBody(5))
		time.Sleep(30 * time.Second)
		code, _ := f.get("/health")
		f.want("/health", code, http.StatusOK)
		f.want("frames", len(st.frames), seen)
		f.want("generated tokens", f.gauge("vllm:generation_tokens_total"), generated)
		f.want("running", f.gauge("vllm:num_requests_running"), 1.0)
		f.want("frames of the late request", len(late.frames), 0)
		time.Sleep(31 * time.Second)
		f.want("frames after the fault", len(st.all()), 103)
		f.want("frames of the late request after the fault", len(late.all()), 8)
	})
}

// TestSleep: an engine that sleeps accepts a request, shows nothing, and answers it after waking up.
func TestSleep(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		_, body := f.call("/sleep?level=1", "")
		f.want("/sleep", body, `{"status":"sleeping","level":1}`)
		st := f.open(chatPath, streamBody(5))
		time.Sleep(time.Second)
		f.want("frames while asleep", len(st.frames), 0)
		f.want("running", f.gauge("vllm:num_requests_running"), 0.0)
		f.want("waiting", f.gauge("vllm:num_requests_waiting"), 0.0)
		_, page := f.get("/metrics")
		f.want("sleep state", strings.Contains(page, `sleep_state="awake"} 0.0`) && strings.Contains(page, `sleep_state="weights_offloaded"} 1.0`), true)
		code, _ := f.get("/health")
		f.want("/health", code, http.StatusOK)
		f.call("/wake_up", "")
		f.want("frames after waking up", len(st.all()), 8)
	})
}

// TestPause: keep stops everything, abort ends it with reason abort, wait lets it finish first.
func TestPause(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(100))
		time.Sleep(50 * time.Millisecond)
		f.call("/pause?mode=keep", "")
		seen := len(st.frames)
		late := f.open(chatPath, streamBody(5))
		time.Sleep(time.Second)
		f.want("frames during keep", len(st.frames)-seen <= 1, true)
		f.want("frames of a request during keep", len(late.frames), 0)
		_, paused := f.get("/is_paused")
		f.want("/is_paused", paused, `{"is_paused":true}`)
		f.call("/resume", "")
		f.want("frames after keep", len(st.all()), 103)
		f.want("frames of the late request", len(late.all()), 8)
	})
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(100))
		time.Sleep(50 * time.Millisecond)
		f.call("/pause?mode=abort", "")
		frames := st.all()
		f.want("finish reason", strings.Contains(frames[len(frames)-3], `"finish_reason":"abort"`), true)
		_, page := f.get("/metrics")
		f.want("counted", strings.Contains(page, `finished_reason="abort",model_name="tiny"} 1.0`), true)
	})
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(100))
		time.Sleep(50 * time.Millisecond)
		f.call("/pause?mode=wait", "")
		synctest.Wait()
		f.want("frames when the pause is answered", len(st.frames), 103)
	})
}

// TestAbortRequests: the engine ends a request by id; its stream ends normally with reason abort.
func TestAbortRequests(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(textPath, `{"stream":true,"max_tokens":1000,"prompt":"x"}`, "X-Request-Id", "abort-me2")
		other := f.open(textPath, `{"stream":true,"max_tokens":50,"prompt":"y"}`, "X-Request-Id", "keep-me")
		time.Sleep(50 * time.Millisecond)
		_, body := f.call("/abort_requests", `{"request_ids": ["cmpl-abort-me2-0"]}`)
		f.want("reply", body, `{"status":"aborted","aborted":1}`)
		frames := st.all()
		f.want("last frames", strings.Contains(frames[len(frames)-2], `"finish_reason":"abort","stop_reason":null`) && frames[len(frames)-1] == "[DONE]", true)
		f.want("frames of the other", len(other.all()), 51)
	})
}

// TestMergedOutputs: under load some frames carry two tokens, as recorded (146 to 149 frames for 150 tokens); usage counts
// them all.
func TestMergedOutputs(t *testing.T) {
	cfg := tiny()
	cfg.Merge = 0 // the default
	bubble(t, cfg, func(f *fixture) {
		var streams []*stream
		for i := range 8 {
			streams = append(streams, f.open(textPath, fmt.Sprintf(
				`{"stream":true,"max_tokens":150,"prompt":"request %d","return_token_ids":true,"stream_options":{"include_usage":true}}`, i)))
		}
		merged := 0
		for _, st := range streams {
			frames := st.all()
			usage := frames[len(frames)-2]
			f.want("completion tokens", field(t, usage, "completion_tokens"), 150)
			chunks := len(frames) - 2
			if chunks < 140 || chunks > 150 {
				t.Errorf("%d frames for 150 tokens", chunks)
			}
			merged += 150 - chunks
		}
		f.want("some frames are merged", merged > 0, true)
	})
}

// TestNextTurnHitsPrefix: the second turn of a conversation finds the first one, the answer included, in the cache.
func TestNextTurnHitsPrefix(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		system := strings.Repeat("You are a helpful assistant. ", 40)
		_, first := f.call(chatPath, `{"max_tokens":100,"messages":[{"role":"system","content":"`+system+`"},{"role":"user","content":"Tell me."}]}`)
		prompt := field(t, first, "prompt_tokens")
		content := strings.Split(strings.SplitAfter(first, `"content":"`)[1], `"`)[0]
		_, second := f.call(chatPath, `{"max_tokens":1,"messages":[{"role":"system","content":"`+system+`"},{"role":"user","content":"Tell me."},`+
			`{"role":"assistant","content":"`+content+`"},{"role":"user","content":"More."}]}`)
		want := (prompt + 99) / 32 * 32 // all full blocks but the last sampled token's
		f.want("cached tokens of the second turn", field(t, second, "cached_tokens"), want)
		_, salted := f.call(chatPath, `{"cache_salt":"x","max_tokens":1,"messages":[{"role":"system","content":"`+system+`"},{"role":"user","content":"Tell me."}]}`)
		f.want("cached tokens with a salt", field(t, salted, "cached_tokens"), 0)
	})
}

// TestDeterministicAnswers: the same prompt gives the same text, on another server too; another seed gives another text.
func TestDeterministicAnswers(t *testing.T) {
	text := func(seed uint64) (text string) {
		cfg := tiny()
		cfg.Seed = seed
		bubble(t, cfg, func(f *fixture) {
			_, body := f.call(textPath, `{"prompt":"once upon a time","max_tokens":20}`)
			_, again := f.call(textPath, `{"prompt":"once upon a time","max_tokens":20}`)
			text = strings.SplitAfter(body, `"text":`)[1][:60]
			f.want("second answer", strings.Contains(again, text), true)
		})
		return text
	}
	if a, b := text(1), text(1); a != b {
		t.Errorf("two servers answer %q and %q", a, b)
	}
	if a, b := text(1), text(2); a == b {
		t.Errorf("two seeds give the same answer %q", a)
	}
}

// TestNaturalStop: without max_tokens the model ends its answer by itself.
func TestNaturalStop(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		_, body := f.call(chatPath, `{"messages":[{"role":"user","content":"hi"}]}`)
		n := field(t, body, "completion_tokens")
		f.want("finish reason stop", strings.Contains(body, `"finish_reason":"stop"`), true)
		f.want("length in range", n >= shortestAnswer && n < longestAnswer, true)
	})
}

// TestPreemption: five long answers that do not fit together: the one admitted last gives way, every answer is complete, and
// the counter shows it.
func TestPreemption(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				_, body := f.call(textPath, fmt.Sprintf(`{"prompt":[%s],"max_tokens":500}`, strings.Repeat(fmt.Sprintf("%d,", 100+i), 159)+"1"))
				f.want("completion tokens", field(t, body, "completion_tokens"), 500)
			})
		}
		wg.Wait()
		if n := f.gauge("vllm:num_preemptions_total"); n < 1 {
			t.Errorf("%v preemptions", n)
		}
	})
}

// TestIdleServerCostsNoGoroutine: an idle server holds no goroutine of its own.
func TestIdleServerCostsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			s, err := New(tiny())
			if err != nil {
				t.Fatal(err)
			}
			c := &call{n: 1}
			c.jobs = []*job{newJob(c, params{maxGiven: true, lex: s.lex}, []uint32{1, 2, 3}, 0, 5, 1)}
			if e := s.submit(c); e != nil {
				t.Fatal(e)
			}
			time.Sleep(time.Second)
			s.leave(c)
		} // the bubble fails when a goroutine is left
	})
}
