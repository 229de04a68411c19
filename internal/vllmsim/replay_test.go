package vllmsim

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func readScenario(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile("testdata/vllm-0.32.0/scenarios/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

// idList is n token ids that start with first and share nothing with a list that starts otherwise.
func idList(first, n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(first + i)
	}
	return "[" + strings.Join(ids, ",") + "]"
}

// loadRecording is a recorded load: what each client saw, and scrapes of the metrics.
type loadRecording struct {
	Requests []loadRequest
	Scrapes  []struct {
		Run       float64
		Wait      float64
		Queries   float64 `json:"q"`
		Prompt    float64 `json:"pt"`
		Generated float64 `json:"gen"`
	} `json:"metrics_timeline"`
}

type loadRequest struct {
	Send, End float64
	Chunks    int `json:"n_chunks"`
	Usage     struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

// TestRecordedLoad sends the recorded 20 streams at their recorded times: the same highest gauges, the same usage, frames
// within the recorded range, the same counters at the end, and a duration of the recorded order.
func TestRecordedLoad(t *testing.T) {
	var rec loadRecording
	readScenario(t, "20-concurrent-40in-150out", &rec)
	cfg := tiny()
	cfg.Merge = 0 // the default
	bubble(t, cfg, func(f *fixture) {
		begin := time.Now()
		streams := make([]*stream, len(rec.Requests))
		for i, r := range rec.Requests {
			time.Sleep(time.Until(begin.Add(time.Duration(r.Send * float64(time.Second)))))
			streams[i] = f.open(textPath, fmt.Sprintf(`{"stream":true,"max_tokens":150,"prompt":%s,"stream_options":{"include_usage":true}}`,
				idList(1000*i, r.Usage.Prompt)))
		}
		time.Sleep(100 * time.Millisecond)
		running, waiting := f.gauge("vllm:num_requests_running"), f.gauge("vllm:num_requests_waiting")
		highest := rec.Scrapes[0]
		for _, m := range rec.Scrapes {
			highest.Run, highest.Wait = max(highest.Run, m.Run), max(highest.Wait, m.Wait)
		}
		f.want("running and waiting", fmt.Sprint(running, waiting), fmt.Sprint(highest.Run, highest.Wait))
		fewest, last := 150, 0.0
		for _, r := range rec.Requests {
			fewest, last = min(fewest, r.Chunks), max(last, r.End)
		}
		for i, st := range streams {
			frames := st.all()
			usage := frames[len(frames)-2]
			f.want("completion tokens", field(t, usage, "completion_tokens"), rec.Requests[i].Usage.Completion)
			if n := len(frames) - 2; n > 150 || n < fewest-4 {
				t.Errorf("stream %d: %d frames, recorded %d to 150", i, n, fewest)
			}
		}
		before, after := rec.Scrapes[0], rec.Scrapes[len(rec.Scrapes)-1]
		f.want("queries", f.gauge("vllm:prefix_cache_queries_total"), after.Queries-before.Queries)
		f.want("prompt tokens", f.gauge("vllm:prompt_tokens_total"), after.Prompt-before.Prompt)
		f.want("generated tokens", f.gauge("vllm:generation_tokens_total"), after.Generated-before.Generated)
		f.want("running at the end", f.gauge("vllm:num_requests_running"), 0.0)
		if took := time.Since(begin).Seconds(); took < last/2 || took > last*2 {
			t.Errorf("20 streams took %.2f s, recorded %.2f s", took, last)
		}
	})
}

// TestRecordedPrefixFacts repeats the recorded pairs of requests and expects the recorded cached_tokens.
func TestRecordedPrefixFacts(t *testing.T) {
	type cached struct {
		Cached int `json:"cached_tokens"`
	}
	var facts []struct {
		What          string
		Twice         int `json:"prompt_tokens"`
		Prompt        int
		Output        int
		Turn2         int `json:"turn2_cached"`
		First, Second cached
	}
	readScenario(t, "prefix-cache-facts", &facts)
	checked := 0
	for i, fact := range facts {
		switch {
		case fact.Twice > 0 && fact.What == "same prompt twice":
			checked++
			bubble(t, tiny(), func(f *fixture) {
				body := `{"max_tokens":1,"prompt":` + idList(1000*i, fact.Twice) + `}`
				for k, want := range []int{fact.First.Cached, fact.Second.Cached} {
					_, reply := f.call(textPath, body)
					f.want(fmt.Sprintf("%d tokens, request %d", fact.Twice, k+1), field(t, reply, "cached_tokens"), want)
				}
			})
		case fact.Output > 0:
			checked++
			bubble(t, tiny(), func(f *fixture) {
				prompt := idList(1000*i, fact.Prompt)
				_, reply := f.call(textPath, fmt.Sprintf(`{"max_tokens":%d,"prompt":%s,"return_token_ids":true}`, fact.Output, prompt))
				answer := strings.SplitAfter(strings.SplitAfter(reply, `"token_ids":[`)[1], "]")[0]
				next := strings.TrimSuffix(prompt, "]") + "," + strings.TrimSuffix(answer, "]") + "," + idList(900000, 20)[1:]
				_, reply = f.call(textPath, `{"max_tokens":1,"prompt":`+next+`}`)
				f.want(fmt.Sprintf("%d + %d tokens, second turn", fact.Prompt, fact.Output), field(t, reply, "cached_tokens"), fact.Turn2)
			})
		}
	}
	if checked < 14 {
		t.Errorf("only %d recorded facts were checked", checked)
	}
}
