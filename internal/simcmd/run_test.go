package simcmd

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/sim/report"
)

// accessLog writes ten records, as the gateway does, of a conversation each of whose turns begins with the turn before.
func accessLog(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`{"time":"2026-12-02T10:00:00Z","level":"INFO","msg":"listening"}` + "\n")
	prefix := ""
	for i := range 10 {
		prefix += " " + strings.Repeat("0", 15) + string(rune('0'+i)) + ":2048"
		b.WriteString(`{"time":"2026-12-02T10:00:1` + string(rune('0'+i)) + `Z","level":"INFO","msg":"request","pool":"chat","model":"Org/Secret","endpoint":"10.0.0.3:8000","outcome":"ok",` +
			`"prompt_tokens":` + []string{"512", "1024", "1536", "2048", "2560", "3072", "3584", "4096", "4608", "5120"}[i] +
			`,"output_tokens":40,"duration_seconds":0.9,"prefix":"` + prefix + `"}` + "\n")
	}
	name := filepath.Join(t.TempDir(), "access.jsonl")
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// What happened in the log happens again: later turns find the earlier ones in the cache, unless there is none; the page and the
// JSON say so too; flags may follow the trace.
func TestRun(t *testing.T) {
	log, page := accessLog(t), filepath.Join(t.TempDir(), "out.html")
	code, out, errs := run(t, "run", log, "--endpoints", "1,2", "--html", page, "--json")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errs)
	}
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Lines) != 2 || r.Lines[0].Overall.Requests != 10 || r.Lines[0].Mean != 100 || r.Lines[0].EngineHits < 0.7 || r.Lines[0].PredictedHits < 0.7 {
		t.Errorf("%+v", r.Lines)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "2 endpoints, pointsman") {
		t.Errorf("page: %v", err)
	}
	if _, again, _ := run(t, "run", log, "--endpoints", "1,2", "--json"); again != out {
		t.Error("the same run prints something else")
	}
	_, cold, _ := run(t, "run", "--prefix-caching=false", log, "--json")
	if err := json.Unmarshal([]byte(cold), &r); err != nil {
		t.Fatal(err)
	}
	if r.Lines[0].EngineHits != 0 || r.Lines[0].PredictedHits != 0 {
		t.Errorf("hits without a cache: %+v", r.Lines[0])
	}
	_, text, _ := run(t, "run", log, "--gates", "off", "--policy", "pointsman,random", "--seeds", "3")
	for _, want := range []string{"10 requests in 9s", "1 other log records", "pointsman", "random", "3 from 1; ±"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// A workload by its name, and the trace that record makes of the log.
func TestRunWorkloadAndRecord(t *testing.T) {
	if code, out, errs := run(t, "run", "w7", "--length", "40s", "--endpoints", "8"); code != 0 || !strings.Contains(out, "W7 head of line") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	log := accessLog(t)
	code, trace, errs := run(t, "record", log)
	if code != 0 || strings.Count(trace, "\n") != 10 || strings.Contains(trace, "Secret") || !strings.Contains(errs, "10 requests; left out: 1 other log records") {
		t.Fatalf("code %d: %s%s", code, trace, errs)
	}
	name := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(name, []byte(trace), 0o600); err != nil {
		t.Fatal(err)
	}
	_, a, _ := run(t, "run", log, "--json")
	_, b, _ := run(t, "run", name, "--json")
	var ra, rb report.Report
	if json.Unmarshal([]byte(a), &ra) != nil || json.Unmarshal([]byte(b), &rb) != nil {
		t.Fatal("no JSON")
	}
	if ra.Lines[0].EngineHits != rb.Lines[0].EngineHits || ra.Lines[0].Overall.TTFT != rb.Lines[0].Overall.TTFT {
		t.Errorf("the log gives %+v, its trace %+v", ra.Lines[0].Overall, rb.Lines[0].Overall)
	}
}

func TestRunWrongUsage(t *testing.T) {
	for _, args := range [][]string{
		{"run"}, {"run", "a", "b"}, {"run", "a", "--endpoints", "0"}, {"run", "a", "--endpoints", "x"}, {"run", "a", "--profile", "x"}, {"run", "a", "--gates", "x"},
		{"run", "a", "--when-full", "x"}, {"run", "a", "--rate", "0"}, {"run", "a", "--seeds", "0"}, {"run", "a", "--ttft", "-1s"}, {"run", "a", "--kv-tokens", "0"},
		{"run", "a", "--block-size", "0"}, {"run", "a", "--down", "4:1s-2s"}, {"run", "a", "--down", "0:2s-1s"}, {"run", "a", "--down", "0"}, {"run", "a", "--nonsense"},
		{"run", "a", "--endpoint", "4:speed=2"}, {"run", "a", "--endpoint", "0:sped=2"}, {"run", "a", "--endpoint", "0:join=9s,leave=2s"}, {"run", "a", "--endpoints", "2,6", "--endpoint", "3:ranks=2"},
		{"run", "a", "--gateways", "0"}, {"run", "a", "--exchange", "soon"}, {"run", "a", "--report-loss", "1"}, {"run", "a", "--report-delay", "-1s"}, {"run", "a", "--patience", "-1s"},
		{"run", "a", "--max-num-seqs", "0"}, {"run", "a", "--max-num-batched-tokens", "0"}, {"run", "a", "--kv-tokens", "15"}, {"run", "a", "--kv-tokens", "9999999999"}, {"run", "a", "--kv-tokens", "99999999", "--block-size", "1"},
		{"run", "a", "--exchange", "1s"}, {"run", "a", "--long-prompt", "-1"}, {"record"}, {"record", "a", "b"},
	} {
		if code, out, errs := run(t, args...); code != 2 || out != "" || errs == "" {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	for _, args := range [][]string{{"run", "/nowhere"}, {"record", "/nowhere"}, {"run", "W1", "--policy", "best"}, {"run", "W7", "--html", "/nowhere/x.html", "--length", "30s"}} {
		if code, _, errs := run(t, args...); code != 1 || errs == "" {
			t.Errorf("%q: code %d, stderr %q", args, code, errs)
		}
	}
}

// What is odd about a trace, or left out of it, is said; and what no time limit means.
func TestRunSaysWhatIsOdd(t *testing.T) {
	var b strings.Builder
	for i := range 50 {
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 600, "output_length": 20}`+"\n", 1_700_000_000+i)
	}
	seconds := filepath.Join(t.TempDir(), "seconds.jsonl")
	if err := os.WriteFile(seconds, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, want string
	}{
		{seconds, "50 requests in 49ms"},
		{seconds, "doubtful   50 requests within 49ms are a great many: timestamp counts milliseconds; if yours are seconds, use --rate 0.001"},
		{seconds + " --rate 0.001", "50 requests in 49s"},
		{seconds + " --rate 0.001 --length 20s --warmup 5s", "of these   those that arrive in the first 20s"},
		{seconds + " --rate 0.001 --length 20s --warmup 5s", "pointsman        15    15"},
		{seconds + " --ttft 0 --long-ttft 0 --tpot 0", "good is    first token whenever\n"},
		{seconds + " --endpoints 1 --endpoint 0:speed=0.05 --ttft 0 --long-ttft 0 --tpot 0", "pointsman        50    50 "},
		{seconds + " --endpoints 1 --endpoint 0:speed=0.05 --ttft 0 --long-ttft 0", "pointsman        50     0                 0           50"},
		{seconds + " --ttft 1s --long-prompt 0", "good is    first token within 1s, 100ms per further token\n"},
		{seconds + " --kv-tokens 320", "of these too long\npointsman        50     0                 0            0       50                 50\n"},
		{seconds + " --patience 1ms", "left in time, not judged"},
		{seconds + " --down 0:0s --endpoints 1", "refused\npointsman        50     0                 0            0       50\n"},
	} {
		code, out, errs := run(t, append([]string{"run"}, strings.Fields(c.args)...)...)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: code %d, %q is not in\n%s%s", c.args, code, c.want, out, errs)
		}
	}
}

// One command says what a change would do: a row for what there is, one for each --if, and a sentence for each.
func TestRunIf(t *testing.T) {
	log := accessLog(t)
	code, out, errs := run(t, "run", log, "--endpoints", "2", "--if", "prefix-caching=false", "--if", "--endpoints=1 endpoint=0:speed=0.5", "--json")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errs)
	}
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	by := map[string]*report.Policy{}
	for i := range r.Lines {
		by[r.Lines[i].Name] = &r.Lines[i]
	}
	base, cold, slow := by["as given"], by["if prefix-caching=false"], by["if --endpoints=1 endpoint=0:speed=0.5"]
	if base == nil || cold == nil || slow == nil || r.Base != "as given" {
		t.Fatalf("base %q, %v", r.Base, by)
	}
	if base.EngineHits == 0 || cold.EngineHits != 0 || len(base.Endpoints) != 2 || len(slow.Endpoints) != 1 || slow.Overall.TPOT.P50 < 1.5*base.Overall.TPOT.P50 {
		t.Errorf("%+v\n%+v\n%+v", base, cold, slow)
	}
	if len(r.Answer) != 3 || !strings.Contains(strings.Join(r.Answer, "\n"), "if prefix-caching=false: ") {
		t.Errorf("%q", r.Answer)
	}
	plain := lines(t, "run", log, "--endpoints", "2")
	if plain.Lines[0].Overall != base.Overall {
		t.Errorf("beside others it is %+v, alone %+v", base.Overall, plain.Lines[0].Overall)
	}
	for _, c := range []struct{ flag, want string }{
		{"gates", `--if "gates": "gates" is not FLAG=VALUE`}, {"", "it is empty"}, {"json=true", "--json holds for all rows"}, {"gats=off", "did you mean --gates?"},
		{"endpoints=0", `--if "endpoints=0": --endpoints "0"`}, {"exchange=1s", `--if "exchange=1s": --exchange without --gateways`},
	} {
		if code, out, errs := run(t, "run", log, "--if", c.flag); code != 2 || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%s: code %d, %q, %q", c.flag, code, out, errs)
		}
	}
	if code, _, errs := run(t, "run", log, "--if", "gates=off", "--compare"); code != 1 || !strings.Contains(errs, "--if compares single rows") {
		t.Errorf("code %d, %q", code, errs)
	}
}

// Where no page can be written, that is said before the run; a page that cannot be completed does not take the table with it.
func TestRunPage(t *testing.T) {
	log, dir := accessLog(t), t.TempDir()
	if code, out, errs := run(t, "run", log, "--html", filepath.Join(dir, "no", "x.html")); code != 1 || out != "" || !strings.Contains(errs, "writing the page") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if code, _, errs := run(t, "run", "nowhere", "--html", filepath.Join(dir, "x.html")); code != 1 || !strings.Contains(errs, "nowhere") {
		t.Errorf("code %d, %q", code, errs)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a run that failed leaves %v, %v", left, err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full")
	}
	if code, out, errs := run(t, "run", log, "--html", "/dev/full"); code != 1 || !strings.Contains(out, "picks by reason") || !strings.Contains(errs, "no space left") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
}

// Made-up traffic: later turns find earlier ones in the cache; a bad file is named with its line.
func TestRunMadeUp(t *testing.T) {
	name := filepath.Join(t.TempDir(), "chat.yaml")
	text := "length: 60s\nclasses:\n  - {name: chat, rate: 2, prompt: [100, 300], output: [20, 40], shared: {texts: 3, tokens: 2000}, turns: 3, think: 1s}\n  - {name: document, rate: 0.2, prompt: [5000, 9000], output: [50, 60], ttft: 9s}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := run(t, "run", name, "--json")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errs)
	}
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if l := r.Lines[0]; len(l.Classes) != 2 || l.Classes[0].Requests < 200 || l.EngineHits < 0.4 {
		t.Errorf("%+v", l)
	}
	if err := os.WriteFile(name, []byte(text+"  - {name: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := run(t, "run", name); code != 1 || !strings.Contains(errs, "chat.yaml:5:") {
		t.Errorf("code %d: %s", code, errs)
	}
}

// The help lists every flag, and its examples run.
func TestRunHelp(t *testing.T) {
	code, help, _ := run(t, "run", "--help")
	if code != 0 {
		t.Fatalf("code %d", code)
	}
	var w what
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	w.flags(fs)
	fs.VisitAll(func(f *flag.Flag) {
		if !strings.Contains(help, "\n  --"+f.Name+" ") {
			t.Errorf("--%s is not in the help", f.Name)
		}
	})
	log, dir := accessLog(t), t.TempDir()
	for _, line := range runExamples() {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var args []string
		for _, word := range strings.Fields(line)[2:] {
			switch word {
			case "access.jsonl":
				word = log
			case "out.html":
				word = filepath.Join(dir, word)
			}
			args = append(args, word)
		}
		if code, out, errs := run(t, args...); code != 0 || !strings.Contains(out, "10 requests") || errs != "" {
			t.Errorf("%s: code %d\n%s%s", line, code, out, errs)
		}
	}
}

func lines(t *testing.T, args ...string) report.Report {
	t.Helper()
	code, out, errs := run(t, append(args, "--json")...)
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil {
		t.Fatalf("%q: code %d, %v: %s", args, code, err, errs)
	}
	return r
}

// What is said of single endpoints, of gateways, reports and clients has its effect, and the report says that it was asked for.
func TestRunConditions(t *testing.T) {
	name := filepath.Join(t.TempDir(), "w.yaml")
	text := "length: 40s\nclasses:\n  - {name: chat, rate: 14, prompt: [500, 1500], output: [50, 150], shared: {texts: 2, tokens: 1000}}\n  - {name: document, rate: 0.4, prompt: [25000, 30000], output: [50, 60]}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []string{"run", name, "--endpoints", "4"}
	plain := lines(t, base...).Lines[0]
	for _, c := range []struct {
		name, said string
		flags      []string
		effect     func(p *report.Policy) bool
	}{
		{"half the speed", "speed 0.5", []string{"--endpoint", "0-1:speed=0.5"}, func(p *report.Policy) bool {
			e := p.Endpoints
			return 3*(e[0].Prefilled+e[1].Prefilled) < 2*(e[2].Prefilled+e[3].Prefilled)
		}},
		{"no cache", "prefix_caching false", []string{"--endpoint", "0:prefix_caching=false"}, func(p *report.Policy) bool { return p.Endpoints[0].HitRate == 0 && p.Endpoints[1].HitRate > 0 }},
		{"little memory", "kv_tokens 20000", []string{"--endpoint", "0-3:kv_tokens=20000"}, func(p *report.Policy) bool { return p.Overall.Refused > 0 }},
		{"one at a time", "max_num_seqs 1", []string{"--endpoint", "0:max_num_seqs=1"}, func(p *report.Policy) bool { return 8*p.Endpoints[0].Picks < p.Overall.Requests }},
		{"joins", "join 30s", []string{"--endpoint", "0:join=30s"}, func(p *report.Policy) bool {
			return p.Endpoints[0].Picks > 0 && 6*p.Endpoints[0].Picks < p.Overall.Requests
		}},
		{"leaves", "leave 10s", []string{"--endpoint", "0:leave=10s"}, func(p *report.Policy) bool {
			return 8*p.Endpoints[0].Picks < p.Overall.Requests && p.Overall.Failed == 0
		}},
		{"hangs", "hang 10s", []string{"--endpoint", "0:hang=10s"}, func(p *report.Policy) bool { return p.Overall.Failed > 0 && p.Overall.Unfinished == 0 }},
		{"foreign load", "foreign 5", []string{"--endpoint", "0:foreign=5,foreign_prompt=4000"}, func(p *report.Policy) bool {
			return 5*p.Endpoints[0].Picks < p.Overall.Requests && p.Endpoints[0].Busy > 0.5
		}},
		{"patience", "clients go away after 1s", []string{"--patience", "1s"}, func(p *report.Policy) bool { return p.Overall.Cancelled > 100 && plain.Overall.Cancelled == 0 }},
		{"gateways", "3 gateways, blind to each other", []string{"--gateways", "3", "--exchange", "blind"}, func(p *report.Policy) bool { return p.Overall.TTFT != plain.Overall.TTFT }},
		{"reports", "reports every 5s, reports 1s late, 50 % of the reports lost", []string{"--report", "5s", "--report-delay", "1s", "--report-loss", "0.5"}, func(p *report.Policy) bool { return p.Overall.TTFT != plain.Overall.TTFT }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := lines(t, append(base[:len(base):len(base)], c.flags...)...)
			if p := &r.Lines[0]; !c.effect(p) {
				t.Errorf("no effect: goodput %.1f, %+v\n%+v", p.Mean, p.Overall, p.Endpoints)
			}
			said := false
			for _, f := range r.Facts {
				said = said || strings.Contains(f.Value, c.said)
			}
			if !said {
				t.Errorf("%q is not in %+v", c.said, r.Facts)
			}
		})
	}
}

// A workload's file says what happens to endpoints, flags add to it, and what names an endpoint that is not there is named with its line.
func TestRunMadeUpEndpoints(t *testing.T) {
	name := filepath.Join(t.TempDir(), "chat.yaml")
	text := "length: 60s\nclasses:\n  - {name: chat, rate: 5, prompt: [100, 300], output: [200, 400], patience: 30s}\nendpoints:\n  0: {down: [20s-30s, 40s-50s]}\n  1: {hang: 45s}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := lines(t, "run", name, "--endpoint", "2:leave=5s").Lines[0]
	if o.Overall.Failed == 0 || o.Overall.Cancelled == 0 || 5*o.Endpoints[2].Picks > o.Endpoints[3].Picks {
		t.Errorf("%+v\n%+v", o.Overall, o.Endpoints)
	}
	if code, _, errs := run(t, "run", name, "--endpoints", "1"); code != 1 || !strings.Contains(errs, "chat.yaml:6: there is no endpoint 1: --endpoints 1 makes them 0 to 0") {
		t.Errorf("code %d: %s", code, errs)
	}
}

// An endpoint that dies: what it had fails, and the rest is served by the others.
func TestRunDown(t *testing.T) {
	code, out, errs := run(t, "run", "W7", "--length", "60s", "--endpoints", "8", "--down", "1:40s-50s,2:45s", "--json")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errs)
	}
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if o := r.Lines[0].Overall; o.Failed == 0 || o.Failed > o.Requests/10 || o.Refused > 0 || o.Goodput < 80 {
		t.Errorf("%+v", o)
	}
}
