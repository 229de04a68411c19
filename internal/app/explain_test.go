package app

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/pool"
)

var update = flag.Bool("update", false, "write the golden files anew")

func explainGates(waiting, running, kv float64) []pool.Gate {
	return []pool.Gate{
		{Name: "waiting", Value: waiting, Threshold: 1, Applies: waiting >= 0, Passed: waiting < 1},
		{Name: "max_num_seqs", Value: running, Threshold: 64, Applies: true, Passed: running < 64},
		{Name: "projected_kv", Value: kv, Threshold: 0.95, Applies: true, Passed: kv <= 0.95},
	}
}

func explainTerms(names string, seconds ...float64) (terms []pool.Term, cost float64) {
	for i, name := range strings.Fields(names) {
		terms = append(terms, pool.Term{Name: name, Seconds: seconds[i]})
		cost += seconds[i]
	}
	return terms, cost
}

func explainCandidate(name string, hit int, gates []pool.Gate, names string, seconds ...float64) pool.Candidate {
	c := pool.Candidate{Endpoint: name, Hit: hit, Gates: gates}
	c.Terms, c.Cost = explainTerms(names, seconds...)
	for _, g := range gates {
		c.Full = c.Full || !g.Passed
	}
	return c
}

const prefixTerms = "wait work busy stall step penalty return"

func prefixExplanation() pool.Explanation {
	x := pool.Explanation{
		ID: "01J9ZK3V7Q8M", Model: "Org/Model-1.5", Pool: "chat", AgeSeconds: 12.41, Policy: "prefix", Endpoint: "10.0.0.3:8000", Reason: "prefix", Prompt: 5120, Hit: 4096,
		Candidates: []pool.Candidate{
			explainCandidate("10.0.0.4:8000", 0, explainGates(3, 31, 0.981), prefixTerms, 0.31, 0.2701234, 0.09, 0.41, 0.05, 0, 0, 0),
			explainCandidate("10.0.0.5:8000", 1024, explainGates(0, 14, 0.62), prefixTerms, 0.02, 0.21, 0.06, 0.33, 0.03, 2, 0, 0),
			explainCandidate("10.0.0.3:8000", 4096, explainGates(0, 9, 0.5612), prefixTerms, 0.0121234, 0.0655555, 0.0213333, 0.0361, 0.02, 0, 0, -0.01),
			explainCandidate("10.0.0.6:8000", 0, explainGates(-1, 0, 0.01), prefixTerms, 0, 0.27, 0, 0, 0.02, 0, 0, 0),
		},
	}
	x.Steps = pool.Steps{Step: 0.0152, Decoding: 31e-6, Context: 0.4e-6, Prefill: 80.1e-6, Scale: 1.08, MeanOutput: 212}
	x.Candidates[0].Slowness, x.Candidates[1].Slowness, x.Candidates[2].Slowness = 1.004, 1.31, 0.9
	x.Candidates[0].Skipped, x.Candidates[3].Skipped = "full", "health"
	x.Candidates[0].InFlight, x.Candidates[0].Peers, x.Candidates[0].Foreign = 9, 20, 2
	x.Candidates[2].Chosen, x.Candidates[2].Tied = true, true
	x.Cost = x.Candidates[2].Cost
	return x
}

func leastRequestExplanation() pool.Explanation {
	x := pool.Explanation{ID: "a1", Pool: "embed", AgeSeconds: 0.04, Policy: "least_request", Endpoint: "b:1", Reason: "load", Prompt: 12}
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		c := explainCandidate(name, 0, explainGates(0, 3, 0.1), "requests request penalty", 3, 1, 0, 0)
		c.Tied, c.Chosen = name != "c:1", name == "b:1"
		x.Candidates = append(x.Candidates, c)
	}
	return x
}

// adminStub answers /api/explain as the admin listener does.
func adminStub(t *testing.T, x pool.Explanation) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Query().Get("id")
		if r.URL.Path != "/api/explain" || id != "" && id != x.ID {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":"this request is not among the recent picks"}`))
			return
		}
		_ = json.NewEncoder(w).Encode(x)
	}))
	t.Cleanup(s.Close)
	return s
}

func runExplain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Explain(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExplainGolden(t *testing.T) {
	for name, x := range map[string]pool.Explanation{"prefix": prefixExplanation(), "least_request": leastRequestExplanation()} {
		t.Run(name, func(t *testing.T) {
			code, got, stderr := runExplain(t, "--admin", adminStub(t, x).URL, x.ID)
			if code != 0 || stderr != "" {
				t.Fatalf("code %d: %s", code, stderr)
			}
			path := "testdata/explain/" + name + ".txt"
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("go test ./internal/app -run ExplainGolden -update, if this is meant:\n%s", diff)
			}
		})
	}
}

// TestExplainAddsUp reads the printed table back: the terms add up to the cost digit for digit, and to the real cost.
func TestExplainAddsUp(t *testing.T) {
	x := prefixExplanation()
	_, text, _ := runExplain(t, "--admin", adminStub(t, x).URL)
	term := regexp.MustCompile(`\s(` + strings.ReplaceAll(prefixTerms, " ", "|") + `|cost)\s+(-?[0-9.]+)$`)
	sum, blocks := 0.0, 0
	for line := range strings.Lines(text) {
		m := term.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		if m[1] != "cost" {
			sum += v
			continue
		}
		if math.Abs(sum-v) > 1e-9 {
			t.Errorf("block %d: terms add up to %v, but the cost is %v", blocks, sum, v)
		}
		if blocks == 0 && math.Abs(v-x.Cost*1e3) > 0.01 {
			t.Errorf("the chosen one's cost is %v ms, want %v", v, x.Cost*1e3)
		}
		sum, blocks = 0, blocks+1
	}
	if blocks != 3 { // the fourth cannot be used now: it has a line, and no numbers
		t.Errorf("%d endpoints with a cost, want 3", blocks)
	}
	if n := strings.Count(text, "max_num_seqs"); n != 3 {
		t.Errorf("%d endpoints with their gates, want 3", n)
	}
}

func TestExplainMany(t *testing.T) {
	x := prefixExplanation()
	for i := range 20 {
		x.Candidates = append(x.Candidates, explainCandidate("10.1.0."+strconv.Itoa(i)+":8000", 0, explainGates(0, 1, 0.1), prefixTerms, 1, 1, 1, 1, 1, 0, 0, 0, 0))
	}
	url := adminStub(t, x).URL
	_, few, _ := runExplain(t, "--admin", url)
	_, all, _ := runExplain(t, "--admin", url, "--all")
	if a, b := strings.Count(few, " of 5,120 prompt tokens"), strings.Count(all, " of 5,120 prompt tokens"); a != explainShown || b != 24 {
		t.Errorf("%d endpoints are shown, and %d with --all; want %d and 24", a, b, explainShown)
	}
	if !strings.Contains(few, "16 more endpoints: --all shows them.") {
		t.Error("nothing says that there are more")
	}
}

func TestExplainErrors(t *testing.T) {
	x := prefixExplanation()
	s := adminStub(t, x)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--admin", s.URL, "nope"}, 1, "pointsman explain: explaining nope: this request is not among the recent picks\n"},
		{[]string{"--admin", "http://127.0.0.1:1"}, 1, "connection refused (is the gateway running"},
		{[]string{"--admin", "::nonsense"}, 1, "not a URL like http://127.0.0.1:9090"},
		{[]string{"a", "b"}, 2, "one request id at most"},
		{[]string{"--nope"}, 2, "there is no flag --nope (see pointsman explain --help)"},
	} {
		code, _, stderr := runExplain(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: code %d, %q; want %d, %q", c.args, code, stderr, c.code, c.want)
		}
	}
	if code, help, stderr := runExplain(t, "--help"); code != 0 || stderr != "" || !strings.HasPrefix(help, "Usage: pointsman explain") {
		t.Errorf("--help: code %d, %q, stderr %q", code, help, stderr)
	}
	code, out, _ := runExplain(t, "--admin", strings.TrimPrefix(s.URL, "http://"), "--json")
	var got pool.Explanation
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || got.ID != x.ID {
		t.Errorf("--json without a scheme: code %d, %v", code, err)
	}
}

func TestVerdict(t *testing.T) {
	for want, c := range map[string]pool.Candidate{
		"full, as good, ":  {Full: true, Tied: true},
		"full, ":           {Full: true},
		"not usable now, ": {Skipped: "health"},
		"spared (it asked for a pause, or is new and has enough to do), ": {Skipped: "health", Paused: true},
	} {
		if _, got := verdictOf(&c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}

// TestThree: an overloaded pool has figures above a thousand, which nobody reads as 1.34e+03.
func TestThree(t *testing.T) {
	for v, want := range map[float64]string{1340.4: "1340", 387.2: "387", 27: "27", 0.0325: "0.0325", 8.04: "8.04", 0: "0"} {
		if got := three(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestWhy(t *testing.T) {
	for _, c := range []struct {
		change func(*pool.Explanation)
		want   string
	}{
		{func(*pool.Explanation) {}, "Picked 10.0.0.3:8000: it holds 4,096 of the 5,120 prompt tokens and costs 2494.9 ms less than 10.0.0.5:8000, the next."},
		{func(x *pool.Explanation) { x.Reason = "load" }, "Picked 10.0.0.3:8000: by its load it costs 2494.9 ms less than 10.0.0.5:8000, the next."},
		{func(x *pool.Explanation) { x.Reason, x.Candidates[1].Tied = "load", true }, "Picked 10.0.0.3:8000: 2 endpoints cost about the same, and this one had the fewest requests, the longest hit, or luck."},
		{func(x *pool.Explanation) {
			x.Reason, x.Candidates[1].Full, x.Candidates[2].Full = "all_full", true, true
		}, "Picked 10.0.0.3:8000: it is full, as every usable endpoint is, and costs least of all, 155.1 ms."},
		{func(x *pool.Explanation) {
			x.Reason, x.Candidates[1].Tied, x.Candidates[1].Cost = "all_full", true, 0.1
		}, "Picked 10.0.0.3:8000: it is full, as every usable endpoint is, and of the 2 that cost about the same it had the fewest requests, the longest hit, or luck."},
		{func(x *pool.Explanation) { x.Reason, x.Candidates[1].Cost = "all_full", 0.1 },
			"Picked 10.0.0.3:8000: it is full, as every usable endpoint is, and has the shortest queue."},
		{func(x *pool.Explanation) { x.Reason = "only_one" }, "Picked 10.0.0.3:8000: it was the only endpoint that could be picked."},
		{func(x *pool.Explanation) {
			x.Reason, x.Candidates[0].Skipped, x.Candidates[1].Skipped = "only_one", "excluded", "excluded"
		},
			"Picked 10.0.0.3:8000: it was the only endpoint left, after attempts at 2 that failed."},
		{func(x *pool.Explanation) { x.Candidates[2].Chosen = false }, "No endpoint could be picked."},
	} {
		x := prefixExplanation()
		c.change(&x)
		if got := why(&x); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
