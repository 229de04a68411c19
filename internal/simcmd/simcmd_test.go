package simcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestWrongUsageIsTwo(t *testing.T) {
	for _, args := range [][]string{
		nil, {"compete"}, {"compare", "x"}, {"compare", "--seeds", "0"}, {"compare", "--length", "10s"}, {"compare", "--exchange", "soon"},
		{"compare", "--gateways", "0"}, {"compare", "--nonsense"}, {"compare", "--report", "-1s"},
		{"compare", "--exchange", "blind"},
	} {
		if code, out, errs := run(t, args...); code != 2 || out != "" || errs == "" {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	for _, args := range [][]string{{"compare", "--workloads", "W0"}, {"compare", "--policies", "best"}} {
		if code, _, errs := run(t, args...); code != 1 || !strings.Contains(errs, "there is no") {
			t.Errorf("%q: code %d, stderr %q", args, code, errs)
		}
	}
}

// A wrong flag costs one line that says what may have been meant, not a page of help.
func TestWrongFlag(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"run a --endpoint-number 4", "there is no flag --endpoint-number: did you mean --endpoint?"},
		{"run a --kv_tokens 4", "there is no flag --kv_tokens: did you mean --kv-tokens?"},
		{"run --gateway 3 a", "there is no flag --gateway: did you mean --gateways?"},
		{"compare --polices lpwl", "did you mean --policies?"},
		{"run a --zzz", "there is no flag --zzz (see pointsman sim run --help)"},
		{"run a --rate fast", `invalid value "fast" for --rate: parse error`},
		{"run a --ttft 2", `invalid value "2" for --ttft: parse error`},
		{"record a --seeds", "there is no flag --seeds"},
	} {
		code, out, errs := run(t, strings.Fields(c.args)...)
		if code != 2 || out != "" || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: code %d, %q, want %s", c.args, code, errs, c.want)
		}
	}
}

func TestNoSuchThing(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"run W7 --policy prefix_onli", `there is no policy "prefix_onli" (see --help)`},
		{"run W7 --policy lmetrik", `there is no policy "lmetrik": did you mean lmetric?`},
		{"run W7 --policy pointsman/prefixonly", "did you mean pointsman/prefix_only?"},
		{"run W7 --profile qwen3-32b-h100-tp1", "did you mean qwen3-32b-h100-tp2?"},
		{"compare --workloads W8c", "did you mean W8a?"},
		{"compare --policies best", `there is no policy "best" (see --help)`},
	} {
		if code, _, errs := run(t, strings.Fields(c.args)...); code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: code %d, %s want %s", c.args, code, errs, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	if code, out, _ := run(t, "--help"); code != 0 || !strings.Contains(out, "compare") {
		t.Errorf("code %d: %s", code, out)
	}
	code, errs, _ := run(t, "compare", "--help")
	if code != 0 {
		t.Errorf("code %d", code)
	}
	for _, p := range sim.Policies() {
		if !strings.Contains(errs, p.Name) || p.Source == "" {
			t.Errorf("%s or where it comes from is not in the help", p.Name)
		}
	}
}

var little = []string{"compare", "--workloads", "W7,w8a", "--policies", "pointsman,least_request", "--seeds", "2", "--length", "1m"}

// The same bytes every time, though the runs end in any order.
func TestTable(t *testing.T) {
	code, out, _ := run(t, little...)
	if _, again, _ := run(t, little...); code != 0 || again != out {
		t.Fatalf("code %d; two runs print\n%s\nand\n%s", code, out, again)
	}
	lines := strings.Split(out, "\n")
	if f := strings.Fields(lines[0]); len(f) != 7 || f[2] != "W7" || f[3] != "W8a" {
		t.Errorf("head %q", lines[0])
	}
	for i, first := range []string{"goodput", "pointsman", "least_request", "ahead of the best other"} {
		if !strings.HasPrefix(lines[i], first) {
			t.Errorf("line %d is %q, want %s", i, lines[i], first)
		}
	}
	_, md, _ := run(t, append(little, "--markdown")...)
	if !strings.HasPrefix(md, "| goodput % ") || !strings.Contains(md, "|---|---:|---:|---:|---:|\n") {
		t.Errorf("no Markdown:\n%s", md)
	}
}

func TestJSON(t *testing.T) {
	code, out, _ := run(t, append(little, "--json", "--gateways", "3", "--exchange", "250ms")...)
	var got table
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil {
		t.Fatalf("code %d, %v", code, err)
	}
	if len(got.Lines) != 2 || len(got.Lines[0].Cells) != 2 || len(got.Lines[0].Cells[0].Goodput) != 2 || got.Setting.Gateways != 3 {
		t.Fatalf("%+v", got)
	}
	for _, l := range got.Lines {
		for _, c := range l.Cells {
			if c.Mean < 1 || c.Mean > 100 || math.Abs(c.Mean-(c.Goodput[0]+c.Goodput[1])/2) > 1e-9 {
				t.Errorf("%s: %+v", l.Name, c)
			}
		}
	}
}

func TestAblation(t *testing.T) {
	code, out, _ := run(t, "compare", "--ablate", "--markdown", "--workloads", "W7", "--seeds", "1", "--length", "1m")
	if code != 0 {
		t.Fatal(code)
	}
	for _, want := range []string{"| without stall", "| without gates", "| without return"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if strings.Contains(out, "ahead of") {
		t.Error("our policy with a term left out counts as another policy")
	}
}

func TestConditions(t *testing.T) {
	code, out, _ := run(t, "compare", "--conditions", "--policies", "pointsman,lmetric", "--workloads", "W7", "--seeds", "1", "--length", "1m")
	if code != 0 {
		t.Fatal(code)
	}
	for _, title := range []string{"reports every 5s", "3 gateways, blind to each other", "coefficients a and p times 0.67", "every other endpoint at 1.25 and 0.75 of the speed"} {
		_, table, ok := strings.Cut(out, title+"\n\n")
		table, _, _ = strings.Cut(table, "\n\n")
		if !ok || strings.Count(table, "\n") < 2 || !strings.Contains(table, "pointsman") || !strings.Contains(table, "lmetric") {
			t.Errorf("%q: %v %q", title, ok, table)
		}
	}
	if code, _, errs := run(t, "compare", "--conditions", "--ablate"); code != 2 || !strings.Contains(errs, "one at a time") {
		t.Errorf("both: code %d, %q", code, errs)
	}
}

// A run that is no longer wanted ends soon.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := Main(ctx, []string{"compare", "--workloads", "W1"}, &out, &errs); code != 130 || out.Len() > 0 || !strings.Contains(errs.String(), "interrupted: 0 of 19 rows were done") {
		t.Errorf("code %d, %q, %q", code, out.String(), errs.String())
	}
	broken := errors.New("the trace has changed")
	cfg := sim.Config{Endpoints: sim.Fleet(1, sim.DefaultEngine()), Progress: func(time.Duration) error { return broken }}
	if _, err := sweep(t.Context(), []sim.Config{cfg}, &errs); !errors.Is(err, broken) {
		t.Errorf("a run without its trace ends with %v", err)
	}
	if _, err := sweep(t.Context(), []sim.Config{{}}, &errs); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a configuration that is wrong: %v", err)
	}
}

// countdown is a context that ends after so many looks at it.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// What was done before an interruption is not lost: the results of the runs that ended are there, and the rows that have all of theirs.
func TestInterruptedHalfway(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one run after the other
	cfg := sim.Config{Endpoints: sim.Fleet(1, sim.DefaultEngine()), Length: 20 * time.Second}
	cfgs := []sim.Config{cfg, cfg, cfg, cfg}
	var errs bytes.Buffer
	results, err := newProgress(&errs, cfgs).sweep(&countdown{t.Context(), 50}, cfgs)
	if !errors.As(err, new(interrupted)) || !errors.Is(err, context.Canceled) || exitCode(err) != 130 || exitCode(errors.New("x")) != 1 {
		t.Errorf("%v", err)
	}
	if ended(results) || results[0] == nil || results[1] == nil || results[2] != nil || results[3] != nil {
		t.Fatalf("%v", results)
	}
	o := options{seeds: 1}
	rows := o.alike(sim.Policies()[:2], setting{})
	table, err := o.tabulate(rows, sim.Scenarios()[:2], results, err)
	if len(table.Lines) != 1 || len(table.Lines[0].Cells) != 2 || err.Error() != "interrupted: 1 of 2 rows were done" {
		t.Errorf("%v, %+v", err, table)
	}
	w := what{seeds: 2, engine: sim.DefaultEngine()}
	variants := []variant{{name: "a"}, {name: "b"}}
	src := &source{scenario: sim.Scenarios()[0]}
	if rep := w.report(src, variants, w.runs(src, variants), results); len(rep.Lines) != 1 || rep.Lines[0].Name != "a" {
		t.Errorf("%+v", rep.Lines)
	}
}

// A signal to end reaches the runs.
func TestSignal(t *testing.T) {
	first := true
	cfg := sim.Config{Endpoints: sim.Fleet(1, sim.DefaultEngine()), Length: 1000 * time.Hour, Progress: func(time.Duration) error {
		if first {
			first = false
			return syscall.Kill(os.Getpid(), syscall.SIGINT)
		}
		return nil
	}}
	if _, err := sweep(t.Context(), []sim.Config{cfg}, io.Discard); !errors.As(err, new(interrupted)) {
		t.Errorf("%v", err)
	}
}

// A workload on which nothing is good does not make the geometric mean 0, which would say nothing of the others.
func TestGeometricMean(t *testing.T) {
	l := line{Cells: []cell{{Mean: 0}, {Mean: 90}}}.summed()
	if l.Worst != 0 || math.Abs(l.GeoMean-3) > 1e-9 {
		t.Errorf("%+v", l)
	}
}

func TestInterval(t *testing.T) {
	mean, half := sim.Interval([]float64{90, 92, 94})
	if mean != 92 || math.Abs(half-4.303*2/math.Sqrt(3)) > 1e-9 {
		t.Errorf("%v ± %v", mean, half)
	}
	if _, half := sim.Interval([]float64{90, 94}); half != 0 {
		t.Errorf("two values have the interval %v", half)
	}
}
