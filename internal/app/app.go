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

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/simcmd"
)

// commands is what help and dispatch read.
func commands() *command.Set {
	return &command.Set{
		Program: "pointsman",
		About:   "pointsman picks a model server for each LLM request: the one that holds the prompt's prefix and is not full.",
		Commands: []command.Command{
			{Name: "serve", Args: "[--config FILE] [--endpoint URL]...", Help: "run the gateway", Run: Serve},
			{Name: "demo", Args: "[--duration D] [--endpoints N]", Help: "gateway, simulated model servers, load and a page to look at", Run: Demo},
			{Name: "check", Args: "FILE...", Help: "check config files and routing cases (.txtar) without starting anything", Run: Check},
			{Name: "explain", Args: "[--admin URL] [REQUEST_ID]", Help: "why a request went to its endpoint: every gate and cost term", Run: Explain},
			{Name: "sim", Args: "run|record|compare ...", Help: "what if: your traffic replayed against a model of vLLM; policies compared", Run: simcmd.Main},
			{Name: "import", Args: "[--out FILE] FILE...", Help: "another gateway's configuration as a pointsman.yaml", Run: Import},
			{Name: "manifests", Args: "network-policy [flags]", Help: "network policies for your labels, to stdout", Run: Manifests},
			{Name: "version", Help: "what this binary is", Run: printVersion},
		},
		More: `Start here:
  pointsman demo                                        nothing needed: simulated model servers and a page
  pointsman serve --endpoint http://10.0.0.3:8000 --endpoint http://10.0.0.4:8000
                                                        a complete gateway in front of two vLLM servers

Every command answers --help. The dashboard and /metrics are on the admin address, http://127.0.0.1:9090 by default.`,
	}
}

// Main runs the command named by args[0] and returns the exit code: 0 for success, 1 for a fault, 2 for wrong usage.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-version") {
		return printVersion(ctx, nil, stdout, stderr)
	}
	return commands().Main(ctx, args, stdout, stderr)
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
