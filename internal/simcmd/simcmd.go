// Package simcmd is the command `pointsman sim`: it runs package sim on every core and prints what came of it. Commands write to
// the streams that they are given and return an exit code: 0, 1 for a fault, 2 for wrong usage.
package simcmd

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/config"
)

// Main runs the command named by args[0].
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	set := command.Set{
		Program: "pointsman sim",
		About:   "Judges routing before a GPU is touched: the gateway's own decisions against a model of vLLM, in virtual time.",
		Commands: []command.Command{
			{Name: "compare", Args: "[--workloads W1,...] [--seeds N] [--policies NAME,...]", Help: "policies against each other on nine workloads", Run: compare},
			{Name: "run", Args: "TRACE [--endpoints N,...] [--compare] [--html FILE]", Help: "a trace or access records, replayed: what if", Run: runTrace},
			{Name: "record", Args: "ACCESS.jsonl > trace.jsonl", Help: "access records as a trace that can be given away", Run: record},
		},
		More: `  pointsman sim compare --workloads W3 --seeds 1        a table in a few seconds
  pointsman sim compare --ablate --markdown             what each term of the cost is good for
  pointsman sim compare --conditions --markdown         stale reports, mixed speeds, several gateways

Every command answers --help. The same seed gives the same bytes.`,
	}
	return set.Main(ctx, args, stdout, stderr)
}

// noSuch says that there is no such thing, and which may have been meant.
func noSuch(kind, name string, known []string) error {
	for i, n := range under(known) {
		if config.Closest(strings.ToLower(name), under(known)) == n {
			return fmt.Errorf("there is no %s %q: did you mean %s?", kind, name, known[i])
		}
	}
	return fmt.Errorf("there is no %s %q (see --help)", kind, name)
}

// under writes names as configuration keys are written.
func under(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strings.ReplaceAll(strings.ToLower(n), "-", "_")
	}
	return out
}

// parsed parses the flags of a command that takes nothing else.
func parsed(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	if code, done := command.Parse(fs, args, stdout); done {
		return code, true
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(fs.Output(), "%s: %q is not a flag\n", fs.Name(), fs.Arg(0))
		return 2, true
	}
	return 0, false
}
