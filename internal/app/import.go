package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/importer"
)

// Import writes the configuration of other gateways as a pointsman.yaml, to stdout or to a file, and what has no place in it
// to stderr. It returns 1 when a file cannot be imported and 2 when it was called wrongly.
func Import(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("pointsman import", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "", "write the configuration to this `file`, which must not exist")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), `Usage: pointsman import [--out FILE] FILE...

Reads what other gateways and routers are configured with and writes the same as a pointsman.yaml. What was in the files and has no
place in it is listed on standard error, each with its line and why. Name files that belong together in one call; - is standard input.

  llm-d               EndpointPickerConfig, endpoints files, InferencePools, the picker's Deployment
  AIBrix              Deployments of the gateway plugins and of models
  production-stack    Helm values, the router's flags or Deployment, its dynamic configuration
  sglang, vllm-router the command line, from a script or a Deployment
  LiteLLM             model_list, for one's own model servers

Flags:
`)
		flags.PrintDefaults()
	}
	if code, done := command.Parse(flags, args, stdout); done {
		return code
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, "pointsman import: name at least one file")
		flags.Usage()
		return 2
	}
	if err := runImport(flags.Args(), *out, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func runImport(paths []string, out string, stdout, stderr io.Writer) error {
	files := make([]importer.File, len(paths))
	for i, path := range paths {
		data, err := readInput(path)
		if err != nil {
			return err
		}
		files[i] = importer.File{Name: path, Data: data}
	}
	result, err := importer.Import(files)
	if result != nil {
		for _, note := range result.Notes {
			fmt.Fprintln(stderr, note)
		}
	}
	if err != nil {
		return err
	}
	if out == "" {
		_, err = io.WriteString(stdout, result.YAML)
		return err
	}
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	_, err = f.WriteString(result.YAML)
	return errors.Join(err, f.Close())
}

// readInput reads a file, or standard input for "-".
func readInput(path string) ([]byte, error) {
	const most = 4<<20 + 1 // what is larger is refused by its size
	if path == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, most))
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is no such file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what to import: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, fmt.Errorf("reading what to import: %w", err)
	}
	return data, nil
}
