// Package app wires the programs together: it turns flags and files into the parts of the gateway, starts them, and
// ends them. It decides nothing about routing. Commands return an exit code and write to the streams that they are
// given, so that a test runs them as a shell would.
package app

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/simcmd"
)

// command is one word after `pointsman`.
type command struct {
	name, args, help string
	run              func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// commands is the table that help and dispatch read.
func commands() []command {
	return []command{
		{"serve", "[--config FILE] [--endpoint URL]...", "run the gateway", Serve},
		{"demo", "[--duration D] [--endpoints N]", "gateway, simulated model servers, load and a page to look at", Demo},
		{"check", "FILE...", "check config files and routing cases (.txtar) without starting anything", Check},
		{"explain", "[--admin URL] [REQUEST_ID]", "why a request went to its endpoint: every gate and cost term", Explain},
		{"sim", "run|record|compare ...", "what if: your traffic replayed against a model of vLLM; policies compared", simcmd.Main},
		{"import", "[--out FILE] FILE...", "another gateway's configuration as a pointsman.yaml", Import},
		{"manifests", "network-policy [flags]", "network policies for your labels, to stdout", Manifests},
		{"version", "", "what this binary is", printVersion},
	}
}

// Main runs the command named by args[0] and returns the exit code: 0 for success, 1 for a fault, 2 for wrong usage.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		usage(stdout)
		return 0
	case "--version", "-version":
		return printVersion(ctx, nil, stdout, stderr)
	}
	names := make([]string, 0, 5)
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
		names = append(names, c.name)
	}
	fmt.Fprintf(stderr, "pointsman: there is no command %q", args[0])
	if near := llmapi.NearMiss(args[0], names); near != "" {
		fmt.Fprintf(stderr, "; did you mean %q?", near)
	}
	fmt.Fprintln(stderr, "\nRun `pointsman --help` for the list.")
	return 2
}

func usage(w io.Writer) {
	fmt.Fprint(w, `pointsman picks a model server for each LLM request: the one that holds the prompt's prefix and is not full.

Usage:
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  pointsman %-9s %-38s %s\n", c.name, c.args, c.help)
	}
	fmt.Fprint(w, `
Start here:
  pointsman demo                                        nothing needed: simulated model servers and a page
  pointsman serve --endpoint http://10.0.0.3:8000 --endpoint http://10.0.0.4:8000
                                                        a complete gateway in front of two vLLM servers

Every command answers --help. The dashboard and /metrics are on the admin address, http://127.0.0.1:9090 by default.
`)
}

// version is set by the linker in release builds.
var version = ""

// Version returns the release, or the module version that the build recorded, or "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func printVersion(_ context.Context, _ []string, stdout, _ io.Writer) int {
	fmt.Fprintf(stdout, "pointsman %s %s %s/%s\n", Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return 0
}
