package simcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
	"pointsman.dev/pointsman/internal/sim/report"
	"pointsman.dev/pointsman/internal/sim/trace"
)

// what is one question of an operator: a workload, fleets, policies.
type what struct {
	workload  string // a file or the name of one of the workloads W1 to W8b
	pool      string
	endpoints string
	engine    engine.Config
	profile   string
	tokens    int
	policies  string
	compare   bool
	gates     string
	whenFull  string
	replay    trace.Options
	tpot      time.Duration
	length    time.Duration
	warmup    time.Duration
	reports   sim.Reports
	gateways  int
	exchange  time.Duration // negative: blind
	lateness  string        // as it was written
	patience  time.Duration
	endpoint  words
	ifs       words
	others    []*what // what they make of this one
	down      string
	sets      []config.SimEndpoint // what --endpoint and --down say
	seeds     int
	first     uint64
	html      string
	json      bool
}

func runTrace(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var w what
	if code, done := w.read(args, stdout, stderr); done {
		return code
	}
	if err := w.run(ctx, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "pointsman sim run: %v\n", err)
		return exitCode(err)
	}
	return 0
}

// mixed parses flags that may stand before, between and after other words, and returns those.
func mixed(fs *flag.FlagSet, args []string, stdout io.Writer) (words []string, code int, done bool) {
	for {
		if code, done := command.Parse(fs, args, stdout); done {
			return nil, code, true
		}
		if fs.NArg() == 0 {
			return words, 0, false
		}
		words = append(words, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

func (w *what) flags(fs *flag.FlagSet) {
	w.engine = sim.DefaultEngine()
	fs.StringVar(&w.endpoints, "endpoints", "4", "`number` of endpoints; several numbers, separated by commas, are compared")
	fs.StringVar(&w.profile, "profile", "qwen3-32b-h100-tp2", "`name` of the step times of a model on its GPUs")
	fs.IntVar(&w.tokens, "kv-tokens", 307328, "`tokens` of KV memory of an endpoint (num_gpu_blocks times block_size of its metrics)")
	fs.IntVar(&w.engine.BlockSize, "block-size", w.engine.BlockSize, "`tokens` per KV block")
	fs.IntVar(&w.engine.MaxNumSeqs, "max-num-seqs", w.engine.MaxNumSeqs, "`requests` that an endpoint runs at once")
	fs.IntVar(&w.engine.MaxBatchedTokens, "max-num-batched-tokens", w.engine.MaxBatchedTokens, "`tokens` of one engine step")
	fs.BoolVar(&w.engine.PrefixCaching, "prefix-caching", true, "endpoints reuse what they computed of a prompt's beginning; --prefix-caching=false: they do not")
	fs.StringVar(&w.policies, "policy", sim.Ours().Name, "`names` of policies, separated by commas: all, ours, baselines, or single ones")
	fs.BoolVar(&w.compare, "compare", false, "the gateway's policy against every published one")
	fs.StringVar(&w.gates, "gates", "default", "when an endpoint is full: default, strict or off")
	fs.StringVar(&w.whenFull, "when-full", "seconds", "which queue is the shortest when all are full, by seconds or requests")
	fs.StringVar(&w.pool, "pool", "", "of access records, those of this `pool`")
	fs.Float64Var(&w.replay.Rate, "rate", 1, "arrivals come so many `times` as fast")
	fs.DurationVar(&w.replay.Jitter, "jitter", 0, "put every arrival off by a random `time` below this: for traces whose stamps are rounded (Mooncake's conversation: 3s)")
	fs.DurationVar(&w.replay.SLO, "ttft", 2*time.Second, "the first token of a good answer comes within this `time`; 0: whenever")
	fs.DurationVar(&w.replay.LongSLO, "long-ttft", 30*time.Second, "the same for long prompts; 0: as --ttft")
	fs.IntVar(&w.replay.LongFrom, "long-prompt", 16384, "`tokens` from which a prompt is long")
	fs.DurationVar(&w.tpot, "tpot", 100*time.Millisecond, "mean `time` per further token of a good answer; 0: any")
	fs.DurationVar(&w.length, "length", 0, "virtual `time` after which arrivals end (default: at the end of the trace; 7m0s of W1 to W8b)")
	fs.DurationVar(&w.warmup, "warmup", 0, "requests that arrive within this `time` do not count (W1 to W8b: 30s)")
	fs.DurationVar(&w.reports.Every, "report", 0, "`time` between two reports of an endpoint (default 100ms, W8b: 5s)")
	fs.DurationVar(&w.reports.Delay, "report-delay", 0, "`time` between what a report shows and its arrival (default 0s)")
	fs.Float64Var(&w.reports.Loss, "report-loss", 0, "`share` of the reports that never arrive, 0 to below 1 (default 0)")
	fs.IntVar(&w.gateways, "gateways", 1, "`replicas` of the gateway, every request to a random one")
	fs.StringVar(&w.lateness, "exchange", "", "with --gateways: how late a gateway learns of the others' picks, as a `duration`, or blind (default 0s)")
	fs.DurationVar(&w.patience, "patience", 0, "`time` after which clients go away whose answer is not complete (default: they stay)")
	fs.Var(&w.endpoint, "endpoint", "what is different at one endpoint or a range, as in `0:speed=0.5,ranks=2`; may be repeated")
	fs.Var(&w.ifs, "if", "compare with the same run but for other flags, as in `\"gateways=3 exchange=blind\"`; may be repeated")
	fs.StringVar(&w.down, "down", "", "short for --endpoint with down=: `0:30s-90s,2:45s`")
	fs.IntVar(&w.seeds, "seeds", 1, "runs per policy, each with a `number` of its own")
	fs.Uint64Var(&w.first, "first-seed", 1, "the first of these `numbers`")
	fs.StringVar(&w.html, "html", "", "write a page with charts to this `file`")
	fs.BoolVar(&w.json, "json", false, "print JSON, with the course of the first run of each policy")
}

// fleets returns the numbers of endpoints that were asked for.
func (w *what) fleets() ([]int, error) {
	var out []int
	for word := range strings.SplitSeq(w.endpoints, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || n > 1024 {
			return nil, fmt.Errorf("--endpoints %q: a number of 1 to 1024 is wanted", word)
		}
		out = append(out, n)
	}
	return out, nil
}

func (w *what) check() error {
	fleets, err := w.fleets()
	if err != nil {
		return err
	}
	if w.exchange, err = lateness(w.lateness); err != nil {
		return err
	}
	if err := w.readEndpoints(); err != nil {
		return err
	}
	if err := known(w.sets, slices.Min(fleets)); err != nil {
		return err
	}
	if err := w.checkEngine(); err != nil {
		return err
	}
	if err := w.checkTimes(); err != nil {
		return err
	}
	return w.checkRanges()
}

func (w *what) checkTimes() error {
	for _, t := range []struct {
		name string
		v    time.Duration
	}{{"jitter", w.replay.Jitter}, {"ttft", w.replay.SLO}, {"long-ttft", w.replay.LongSLO}, {"tpot", w.tpot}, {"length", w.length}, {"warmup", w.warmup},
		{"patience", w.patience}, {"report", w.reports.Every}, {"report-delay", w.reports.Delay}} {
		if t.v < 0 {
			return fmt.Errorf("--%s %v is negative", t.name, t.v)
		}
	}
	return nil
}

func (w *what) checkRanges() error {
	switch {
	case w.replay.LongFrom < 0:
		return fmt.Errorf("--long-prompt %d is negative", w.replay.LongFrom)
	case w.seeds < 1 || w.seeds > 1000:
		return fmt.Errorf("--seeds %d is outside 1 to 1000", w.seeds)
	case !(w.replay.Rate > 0 && w.replay.Rate <= 1000):
		return fmt.Errorf("--rate %g is outside 0 to 1000", w.replay.Rate)
	case !(w.reports.Loss >= 0 && w.reports.Loss < 1):
		return fmt.Errorf("--report-loss %g is outside 0 to below 1", w.reports.Loss)
	case w.gateways < 1 || w.gateways > 64:
		return fmt.Errorf("--gateways %d is outside 1 to 64", w.gateways)
	case w.gateways == 1 && w.exchange != 0:
		return errAlone
	case !slices.Contains([]string{"default", "strict", "off"}, w.gates):
		return fmt.Errorf("--gates %q is none of default, strict and off", w.gates)
	case w.whenFull != "seconds" && w.whenFull != "requests":
		return fmt.Errorf("--when-full %q is neither seconds nor requests", w.whenFull)
	}
	return nil
}

// params are the settings of the pool that were asked for.
func (w *what) params(p *route.Params) {
	switch w.gates {
	case "strict":
		p.Gates = route.GatesStrict
	case "off":
		p.Gates = route.GatesOff
	}
	if w.whenFull == "requests" {
		p.WhenFull = route.Requests
	}
}

// variant is one row of the report.
type variant struct {
	name   string
	policy sim.Policy
	fleet  int
}

func (w *what) variants() ([]variant, error) {
	o := options{policies: w.policies}
	if w.compare {
		o.policies = sim.Ours().Name + ",baselines"
	}
	policies, err := o.chosen()
	if err != nil {
		return nil, err
	}
	fleets, err := w.fleets()
	if err != nil {
		return nil, err
	}
	var out []variant
	for _, n := range fleets {
		for _, p := range policies {
			v := variant{p.Name, p, n}
			if len(fleets) > 1 {
				v.name = fmt.Sprintf("%d endpoints, %s", n, p.Name)
			}
			out = append(out, v)
		}
	}
	return out, nil
}

func (w *what) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := writable(w.html); err != nil {
		return err
	}
	src, variants, runs, err := w.rows()
	if err != nil {
		return err
	}
	results, err := w.all(ctx, runs, stderr)
	if err != nil && !errors.As(err, new(interrupted)) {
		return err
	}
	rep := w.report(src, variants, runs, results)
	if err != nil {
		err = fmt.Errorf("%w: %d of %d rows were done", err, len(rep.Lines), len(variants))
	}
	if len(rep.Lines) == 0 {
		return err
	}
	return errors.Join(w.write(rep, stdout), err)
}

// report says what came of the variants whose runs ended.
func (w *what) report(src *source, variants []variant, runs []*oneRun, results []*sim.Result) *report.Report {
	rep := &report.Report{Workload: src.name, Seeds: w.seeds, First: w.first, Facts: w.facts(src)}
	rep.SLO = report.SLO{TTFT: w.replay.SLO.Seconds(), LongTTFT: w.replay.LongSLO.Seconds(), TPOT: w.tpot.Seconds()}
	if src.trace == nil {
		rep.SLO = report.SLO{TPOT: w.tpot.Seconds()} // each class has its own
	}
	if len(w.others) > 0 {
		rep.Base = asGiven
	}
	for i, v := range variants {
		if of := results[i*w.seeds : (i+1)*w.seeds]; ended(of) {
			rep.Add(v.name, v.policy.Source, of, runs[i*w.seeds].rec.Series())
		}
	}
	rep.Finish()
	return rep
}

// write hands out the report: first what is printed, which costs nothing to keep when the page cannot be written.
func (w *what) write(rep *report.Report, stdout io.Writer) error {
	show := rep.WriteText
	if w.json {
		show = rep.WriteJSON
	}
	if err := show(stdout); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	if w.html == "" {
		return nil
	}
	return writeFile(w.html, rep.WriteHTML)
}

// writable reports why a file could not be written after a long run, before it; no file always can.
func writable(name string) error {
	if name == "" {
		return nil
	}
	_, err := os.Lstat(name)
	fresh := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	_ = f.Close()
	if fresh {
		_ = os.Remove(name)
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("writing the page: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
