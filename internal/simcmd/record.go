package simcmd

import (
	"context"
	"flag"
	"fmt"
	"io"

	"pointsman.dev/pointsman/internal/sim/trace"
)

// record turns access records into an anonymous trace.
func record(_ context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("pointsman sim record", flag.ContinueOnError)
	fs.SetOutput(stderr)
	pool := fs.String("pool", "", "only the requests of this `pool`")
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), `Usage: pointsman sim record ACCESS.jsonl [flags] > trace.jsonl

Turns access records (log: {format: json, prefix_hashes: true}) into a trace that can be given away: per request the time since
the first one, the exact lengths of prompt and answer, and salted hashes of pieces of the prompt. No name, address, model or wall time.

Flags:
`)
		fs.PrintDefaults()
	}
	names, code, done := mixed(fs, args, stdout)
	if done {
		return code
	}
	if len(names) != 1 {
		fmt.Fprintf(stderr, "pointsman sim record: %d files are named, want one\n", len(names))
		return 2
	}
	t, err := trace.Open(names[0], *pool)
	if err == nil {
		err = t.Write(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "pointsman sim record: %v\n", err)
		return 1
	}
	fmt.Fprintf(stderr, "%d requests", t.Requests)
	for _, reason := range sortedKeys(t.Skipped) {
		fmt.Fprintf(stderr, "; left out: %d %s", t.Skipped[reason], reason)
	}
	fmt.Fprintln(stderr)
	if t.Prefixes == 0 {
		fmt.Fprintln(stderr, "the records have no prefix hashes, so the trace says nothing of what prompts have in common")
	}
	return 0
}
