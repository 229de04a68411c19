package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/routecase"
)

// Check reads configuration files and routing cases and says what they mean or what is wrong with them. It starts
// nothing and contacts nobody. One line per good file goes to stdout, everything else to stderr; it returns 1 when a file
// is wrong and 2 when it was called wrongly.
func Check(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("pointsman check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	whole := flags.Bool("print", false, "print each configuration with every default written out")
	flags.Usage = func() { checkUsage(flags) }
	if code, done := command.Parse(flags, args, stdout); done {
		return code
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, "pointsman check: name at least one file (see pointsman check --help)")
		return 2
	}
	wrong := 0
	for _, path := range flags.Args() {
		if !checkFile(path, *whole, stdout, stderr) {
			wrong++
		}
	}
	if wrong > 0 {
		fmt.Fprintf(stderr, "pointsman check: %d of %d files refused\n", wrong, flags.NArg())
		return 1
	}
	return 0
}

func checkUsage(flags *flag.FlagSet) {
	fmt.Fprint(flags.Output(), `Usage: pointsman check [--print] FILE...

Reads files without starting anything, and exits with 1 if one of them is wrong.

  pointsman check pointsman.yaml     a configuration: its pools, policies and limits in one line,
                                     or every error with file:line:column, key, rule and a suggestion
  pointsman check routes/*.txtar     routing cases: a pool, a request, and the pick that you expect

A configuration's endpoints files and key files are read too; endpoints are not contacted. A routing case looks like this:

  # a warm prefix beats a shorter queue
  -- pool --
  a running=3 kv=0.41 holds=h1,h2
  b running=1 kv=0.10
  -- request --
  blocks=h1,h2,h3
  -- want --
  pick a

Flags:
`)
	flags.PrintDefaults()
}

// checkFile reports on one file and returns whether it is good.
func checkFile(path string, whole bool, stdout, stderr io.Writer) bool {
	if strings.HasSuffix(path, ".txtar") {
		return checkCase(path, stdout, stderr)
	}
	cfg, err := config.Check(path)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return false
	}
	fmt.Fprintf(stdout, "%s: ok: %s\n", path, meaning(cfg))
	for _, w := range cfg.Warnings {
		fmt.Fprintf(stderr, "warning: %v\n", w)
	}
	if whole {
		fmt.Fprint(stdout, cfg.YAML())
	}
	return true
}

func checkCase(path string, stdout, stderr io.Writer) bool {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: there is no such file", path)
	}
	if err == nil {
		err = routecase.Run(path, data)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return false
	}
	fmt.Fprintf(stdout, "%s: ok: the picks are the wanted ones\n", path)
	return true
}

// meaning says in one line what a configuration makes the gateway do, derived values included.
func meaning(c *config.Config) string {
	parts := make([]string, 0, len(c.Pools)+4)
	for _, p := range c.Pools {
		parts = append(parts, poolMeaning(p))
	}
	parts = append(parts, modelsMeaning(c))
	parts = append(parts, timesMeaning(c), "bodies up to "+c.MaxBodyText())
	scheme := ""
	if c.TLS != nil {
		scheme = " with TLS"
	}
	parts = append(parts, fmt.Sprintf("api %s%s, admin %s", c.Listen, scheme, c.Admin))
	return strings.Join(parts, "; ")
}

// timesMeaning says the limit, what differs from it, and what a pod needs to end in order.
func timesMeaning(c *config.Config) string {
	text := "limit " + c.LimitText()
	var follow []string
	for _, t := range []struct {
		name  string
		value time.Duration
	}{{"first byte", c.FirstByte}, {"idle gaps", c.Idle}, {"drain", c.Drain}} {
		if t.value == c.Limit {
			follow = append(follow, t.name)
		} else {
			text += fmt.Sprintf(", %s %s", t.name, t.value)
		}
	}
	if len(follow) > 0 {
		text += ", also for " + strings.Join(follow, ", ")
	}
	pod := "and no preStop hook: drain_delay does its work"
	if c.DrainDelay == 0 {
		pod = "and the duration of its preStop hook, which has to do the work of drain_delay"
	}
	return fmt.Sprintf("%s; a pod needs terminationGracePeriodSeconds: %d %s", text, int(c.GracePeriod().Seconds()), pod)
}

func poolMeaning(p config.Pool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool %s: %s", p.Name, sourceMeaning(p))
	switch p.Policy {
	case config.PolicyAuto:
		b.WriteString(", policy auto (prefix where the endpoints cache prefixes, else least_request)")
	default:
		fmt.Fprintf(&b, ", policy %s", p.Policy)
	}
	if p.Gates == config.GatesOff {
		b.WriteString(", never full")
	} else {
		seqs := "max_num_seqs of the model server"
		if p.Full.MaxNumSeqs > 0 {
			seqs = strconv.Itoa(p.Full.MaxNumSeqs)
		}
		fmt.Fprintf(&b, ", full at waiting >= %d, running >= %s or projected KV > %s", p.Full.Waiting, seqs,
			strconv.FormatFloat(p.Full.ProjectedKV, 'g', -1, 64))
		if p.Gates == config.GatesStrict {
			b.WriteString(" for every prompt")
		} else {
			fmt.Fprintf(&b, " (waiting: prompts up to %d tokens)", p.Full.LongPrompt)
		}
		fmt.Fprintf(&b, ", all full: fewest %s", p.WhenFull)
	}
	if p.Queue.Max > 0 {
		fmt.Fprintf(&b, ", %d may wait", p.Queue.Max)
		if p.Queue.Wait > 0 {
			fmt.Fprintf(&b, " for %s", p.Queue.Wait)
		}
	}
	if p.Hold > 0 {
		fmt.Fprintf(&b, ", holds requests for %s while empty", p.Hold)
	}
	if p.Overflow {
		b.WriteString(", overflows to the next pool")
	}
	if p.APIKeyFile != "" {
		b.WriteString(", with an API key")
	}
	return b.String()
}

// sourceMeaning counts the endpoints; those of a file as it is at this moment.
func sourceMeaning(p config.Pool) string {
	switch {
	case p.DNS != "":
		return "the addresses of " + p.DNS
	case p.Kubernetes != nil:
		return kubernetesMeaning(p.Kubernetes)
	case p.File != "":
		urls, err := config.ReadEndpoints(p.File)
		if err != nil {
			return "endpoints in " + p.File
		}
		return command.Plural(len(urls), "endpoint") + " in " + p.File
	}
	return command.Plural(len(p.Endpoints), "endpoint")
}

// kubernetesMeaning says where a pool's pods are looked for.
func kubernetesMeaning(k *config.KubernetesSource) string {
	text := "the pods of "
	switch {
	case k.InferencePool != "":
		text += "InferencePool " + k.InferencePool
	case k.Service != "":
		text += "Service " + k.Service
	case k.AIBrix != "":
		text += "AIBrix model " + k.AIBrix
	default:
		text = "the pods with " + k.Selector
	}
	if k.Namespace == "" {
		return text + " in the gateway's own namespace"
	}
	return text + " in namespace " + k.Namespace
}

func modelsMeaning(c *config.Config) string {
	models := c.Models
	if len(models) == 0 {
		return "models: those that the endpoints list"
	}
	names := make([]string, 0, len(models))
	for _, m := range models {
		pools := make([]string, len(m.Pools))
		for i, p := range m.Pools {
			pools[i] = p.Pool
			if p.Serves != m.Serves {
				pools[i] += " (" + p.Serves + ")"
			}
		}
		text := m.Name
		if m.Serves != m.Name {
			text += " (" + m.Serves + ")"
		}
		if len(pools) > 0 {
			text += " in " + strings.Join(pools, ", then ")
		} else {
			text += " where endpoints list it"
		}
		if m.Limit != c.Limit {
			text += fmt.Sprintf(" with limit %s", m.Limit)
		}
		names = append(names, text)
	}
	return "models: those that the endpoints list, and " + strings.Join(names, ", ")
}
