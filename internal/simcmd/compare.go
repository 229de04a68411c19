package simcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// options are what a comparison is about.
type options struct {
	workloads, policies string
	seeds               int
	first               uint64
	length              time.Duration
	setting             setting
	ablate, conditions  bool
	json, markdown      bool
}

// setting is how a run differs from the workload as it is written down.
type setting struct {
	Report       time.Duration `json:"report_ns,omitempty"`    // 0: as the workload says
	Gateways     int           `json:"gateways,omitempty"`     // 0: one
	Exchange     time.Duration `json:"exchange_ns,omitempty"`  // negative: blind
	Mixed        bool          `json:"mixed_speed,omitempty"`  //
	Coefficients float64       `json:"coefficients,omitempty"` // factor; 0: as they are
}

func (s setting) apply(c *sim.Config) {
	if s.Report > 0 {
		c.Reports.Every = s.Report
	}
	c.Gateways, c.Exchange = s.Gateways, s.Exchange
	for i := range c.Endpoints {
		if s.Mixed {
			c.Endpoints[i].Slow = mixedSpeeds[i%len(mixedSpeeds)]
		}
	}
	if f := s.Coefficients; f > 0 {
		p := c.Endpoints[0].Engine.Profile
		c.Coefficients = route.Coefficients{A: f * p.A, B: p.B, C: p.C, P: f * p.P, Q: p.Q}
	}
}

// mixedSpeeds are factors on step times whose speeds add up to those of equal endpoints.
var mixedSpeeds = [...]float64{0.8, 4. / 3}

// String says what is different.
func (s setting) String() string {
	var parts []string
	if s.Report > 0 {
		parts = append(parts, fmt.Sprintf("reports every %v", s.Report))
	}
	if s.Gateways > 1 {
		known := fmt.Sprintf("picks known to the others after %v", s.Exchange)
		if s.Exchange < 0 {
			known = "blind to each other"
		}
		parts = append(parts, fmt.Sprintf("%d gateways, %s", s.Gateways, known))
	}
	if s.Mixed {
		parts = append(parts, "every other endpoint at 1.25 and 0.75 of the speed")
	}
	if s.Coefficients > 0 {
		parts = append(parts, fmt.Sprintf("coefficients a and p times %g", s.Coefficients))
	}
	if len(parts) == 0 {
		return "as they are"
	}
	return strings.Join(parts, ", ")
}

func compare(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("pointsman sim compare", flag.ContinueOnError)
	fs.SetOutput(stderr)
	o.flags(fs)
	exchange := fs.String("exchange", "", "with --gateways: how late a gateway learns of the others' picks, as a `duration`, or blind")
	fs.Usage = func() { compareUsage(fs, fs.Output()) }
	if code, done := parsed(fs, args, stdout); done {
		return code
	}
	if err := o.check(*exchange); err != nil {
		fmt.Fprintf(stderr, "pointsman sim compare: %v\n", err)
		return 2
	}
	if err := o.print(ctx, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "pointsman sim compare: %v\n", err)
		return exitCode(err)
	}
	return 0
}

func (o *options) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.workloads, "workloads", "all", "`names` of workloads, separated by commas")
	fs.StringVar(&o.policies, "policies", "all", "`names` of policies: all, ours, baselines, or single ones, separated by commas")
	fs.IntVar(&o.seeds, "seeds", 2, "runs per policy and workload, each with a `number` of its own")
	fs.Uint64Var(&o.first, "first-seed", 1, "the first of these `numbers`")
	fs.DurationVar(&o.length, "length", 0, "virtual `time` of arrivals; the first 30 s do not count (default 7m0s)")
	fs.DurationVar(&o.setting.Report, "report", 0, "`time` between two reports of an endpoint (default 100ms, W8b: 5s)")
	fs.IntVar(&o.setting.Gateways, "gateways", 1, "`replicas` of the gateway, every request to a random one")
	fs.BoolVar(&o.setting.Mixed, "mixed-speed", false, "every other endpoint is faster and slower")
	fs.Float64Var(&o.setting.Coefficients, "coefficients", 0, "`factor` by which the gateway's coefficients a and p are off")
	fs.BoolVar(&o.ablate, "ablate", false, "the gateway's own policy with each of its terms left out")
	fs.BoolVar(&o.conditions, "conditions", false, "the policies under other conditions too: a table of each condition")
	fs.BoolVar(&o.json, "json", false, "print JSON, with the goodput of every seed")
	fs.BoolVar(&o.markdown, "markdown", false, "print Markdown")
}

func compareUsage(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprint(w, `Usage: pointsman sim compare [flags]

Goodput in percent (first token within the workload's limit, tokens within 100 ms each) of every policy on every workload, mean
of the seeds and half the width of its 95 % confidence interval, the worst workload and the geometric mean of all. W1 to W8b
take some 10 s per policy and seed on one core; every core is used.

Flags:
`)
	fs.PrintDefaults()
	fmt.Fprint(w, "\nWorkloads:\n")
	for _, s := range sim.Scenarios() {
		fmt.Fprintf(w, "  %-4s %s\n", s.ID, s.Name)
	}
	fmt.Fprint(w, "\nPolicies:\n")
	for _, p := range sim.Policies() {
		fmt.Fprintf(w, "  %-30s %s\n", p.Name, p.Source)
	}
}

func (o *options) check(exchange string) error {
	switch {
	case o.ablate && o.conditions:
		return fmt.Errorf("--ablate and --conditions are two different questions: ask one at a time")
	case o.seeds < 1 || o.seeds > 1000:
		return fmt.Errorf("--seeds %d is outside 1 to 1000", o.seeds)
	case o.length != 0 && o.length < time.Minute:
		return fmt.Errorf("--length %v is below a minute, of which 30 s do not count", o.length)
	case o.setting.Report < 0 || o.setting.Coefficients < 0:
		return fmt.Errorf("a negative --report or --coefficients")
	case o.setting.Gateways < 1 || o.setting.Gateways > 64:
		return fmt.Errorf("--gateways %d is outside 1 to 64", o.setting.Gateways)
	}
	var err error
	o.setting.Exchange, err = lateness(exchange)
	if err == nil && o.setting.Exchange != 0 && o.setting.Gateways == 1 {
		return errAlone
	}
	return err
}

var errAlone = errors.New("--exchange without --gateways: one gateway has nobody to tell of its picks")

// lateness reads --exchange; negative is blind.
func lateness(exchange string) (time.Duration, error) {
	switch exchange {
	case "":
		return 0, nil
	case "blind":
		return -1, nil
	}
	d, err := time.ParseDuration(exchange)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("--exchange %q is neither a duration nor blind", exchange)
	}
	return d, nil
}

// scenarios returns the workloads that were asked for, in their usual order.
func (o *options) scenarios() ([]sim.Scenario, error) {
	all := sim.Scenarios()
	if o.workloads == "all" {
		return all, nil
	}
	var out []sim.Scenario
	names := strings.Split(o.workloads, ",")
	for _, s := range all {
		if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(strings.TrimSpace(n), s.ID) }); i >= 0 {
			out, names = append(out, s), slices.Delete(names, i, i+1)
		}
	}
	if len(names) > 0 {
		var known []string
		for _, s := range all {
			known = append(known, s.ID)
		}
		return nil, noSuch("workload", names[0], known)
	}
	return out, nil
}

func (o *options) chosen() ([]sim.Policy, error) {
	var out []sim.Policy
	for name := range strings.SplitSeq(o.policies, ",") {
		switch name = strings.TrimSpace(name); name {
		case "all":
			out = append(out, sim.Policies()...)
		case "ours":
			out = append(append(out, sim.Ours()), sim.Variants()...)
		case "baselines":
			out = append(out, sim.Baselines()...)
		default:
			p, ok := sim.PolicyByName(name)
			if !ok {
				known := []string{"all", "ours", "baselines"}
				for _, p := range sim.Policies() {
					if strings.Contains(p.Name, "/") == strings.Contains(name, "/") { // pointsman is no help to who wrote pointsman/...
						known = append(known, p.Name)
					}
				}
				return nil, noSuch("policy", name, known)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// row is a policy under a setting; name is what the table calls it.
type row struct {
	name    string
	policy  sim.Policy
	setting setting
}

// configs lists the runs of rows: row by row, workload by workload, seed by seed.
func (o *options) configs(rows []row, scenarios []sim.Scenario) []sim.Config {
	var out []sim.Config
	for _, r := range rows {
		for _, sc := range scenarios {
			for k := range o.seeds {
				c := sc.Config()
				c.Workload, c.Policy, c.Seed = sc.Workload, r.policy, o.first+uint64(k)
				if o.length > 0 {
					c.Length = o.length
				}
				r.setting.apply(&c)
				out = append(out, c)
			}
		}
	}
	return out
}

// measure runs rows and returns their table. When it is interrupted, the table has the rows that were done.
func (o *options) measure(ctx context.Context, rows []row, stderr io.Writer) (*table, error) {
	scenarios, err := o.scenarios()
	if err != nil {
		return nil, err
	}
	results, err := sweep(ctx, o.configs(rows, scenarios), stderr)
	if err != nil && !errors.As(err, new(interrupted)) {
		return nil, err
	}
	return o.tabulate(rows, scenarios, results, err)
}

// tabulate makes a table of the rows whose runs ended; err is why not all did.
func (o *options) tabulate(rows []row, scenarios []sim.Scenario, results []*sim.Result, err error) (*table, error) {
	t := &table{Setting: o.setting, Seeds: o.seeds, First: o.first}
	for _, sc := range scenarios {
		t.Workloads = append(t.Workloads, sc.ID)
	}
	of := len(scenarios) * o.seeds
	for i, r := range rows {
		if all := results[i*of : (i+1)*of]; ended(all) {
			t.Lines = append(t.Lines, o.line(r, all))
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: %d of %d rows were done", err, len(t.Lines), len(rows))
	}
	return t, err
}

// line is what came of row r: workload by workload, seed by seed.
func (o *options) line(r row, results []*sim.Result) line {
	l := line{Name: r.name, Source: r.policy.Source}
	for of := range slices.Chunk(results, o.seeds) {
		var c cell
		for _, res := range of {
			c.add(res)
		}
		l.Cells = append(l.Cells, c)
	}
	return l.summed()
}

// print measures what was asked for and prints it.
func (o *options) print(ctx context.Context, stdout, stderr io.Writer) error {
	policies, err := o.chosen()
	if err != nil {
		return err
	}
	asked := []question{{setting: o.setting, rows: o.alike(policies, o.setting)}}
	switch {
	case o.ablate:
		asked = []question{{"Each term left out, one at a time", o.setting, o.leftOut()}}
	case o.conditions:
		asked = nil
		for _, s := range otherConditions() {
			asked = append(asked, question{s.String(), s, o.alike(policies, s)})
		}
	}
	var tables []*table
	for _, q := range asked {
		t, err := o.measure(ctx, q.rows, stderr)
		if t != nil && len(t.Lines) > 0 {
			t.Title, t.Setting = q.title, q.setting
			tables = append(tables, t)
		}
		switch {
		case err != nil && len(tables) > 0: // what there is took long
			return errors.Join(o.write(stdout, tables...), err)
		case err != nil:
			return err
		}
	}
	return o.write(stdout, tables...)
}

// question is one table.
type question struct {
	title   string
	setting setting
	rows    []row
}

// alike lists policies under one setting.
func (o *options) alike(policies []sim.Policy, s setting) []row {
	rows := make([]row, len(policies))
	for i, p := range policies {
		rows[i] = row{p.Name, p, s}
	}
	return rows
}
