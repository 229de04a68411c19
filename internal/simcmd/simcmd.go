// Package simcmd is the command `pointsman sim`: it runs package sim on every core and prints what came of it. Commands write to
// the streams that they are given and return an exit code: 0, 1 for a fault, 2 for wrong usage.
package simcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
)

// command is one word after `pointsman sim`.
type command struct {
	name, args, help string
	run              func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// commands is the table that help and dispatch read.
func commands() []command {
	return []command{
		{"compare", "[--workloads W1,...] [--seeds N] [--policies NAME,...]", "policies against each other on nine workloads", compare},
		{"run", "TRACE [--endpoints N,...] [--compare] [--html FILE]", "a trace or access records, replayed: what if", runTrace},
		{"record", "ACCESS.jsonl > trace.jsonl", "access records as a trace that can be given away", record},
	}
}

// Main runs the command named by args[0].
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		usage(stdout)
		return 0
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "pointsman sim: there is no command %q\n\n", args[0])
	usage(stderr)
	return 2
}

func usage(w io.Writer) {
	fmt.Fprint(w, `Judges routing before a GPU is touched: the gateway's own decisions against a model of vLLM, in virtual time.

Usage:
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  pointsman sim %-8s %-58s %s\n", c.name, c.args, c.help)
	}
	fmt.Fprint(w, `
  pointsman sim compare --workloads W3 --seeds 1        a table in a few seconds
  pointsman sim compare --ablate --markdown             what each term of the cost is good for
  pointsman sim compare --conditions --markdown         stale reports, mixed speeds, several gateways

Every command answers --help. The same seed gives the same bytes.
`)
}

// parsed parses flags; done says that the command ends here with code.
func parsed(fs *flag.FlagSet, args []string) (code int, done bool) {
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0, true
	case err != nil:
		return 2, true
	case fs.NArg() > 0:
		fmt.Fprintf(fs.Output(), "pointsman sim %s: %q is not a flag\n", fs.Name(), fs.Arg(0))
		return 2, true
	}
	return 0, false
}
