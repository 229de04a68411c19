package simcmd

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// asGiven is the name of the row that the rows of --if are compared with.
const asGiven = "as given"

// read parses the arguments of a run. done says that the command ends here with code.
func (w *what) read(args []string, stdout, stderr io.Writer) (code int, done bool) {
	fs := flag.NewFlagSet("pointsman sim run", flag.ContinueOnError)
	fs.SetOutput(stderr)
	w.flags(fs)
	fs.Usage = func() { runUsage(fs, fs.Output()) }
	names, code, done := mixed(fs, args, stdout)
	if done {
		return code, true
	}
	err := fmt.Errorf("%d traces are named, want one", len(names))
	if len(names) == 1 {
		w.workload = names[0]
		err = w.check()
	}
	if err == nil {
		err = w.alternatives(args, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "pointsman sim run: %v\n", err)
		return 2, true
	}
	return 0, false
}

// alternatives reads every --if: the same arguments, and what it says after them.
func (w *what) alternatives(args []string, stderr io.Writer) error {
	for _, text := range w.ifs {
		more, err := flagsOf(text)
		if err != nil {
			return fmt.Errorf("--if %q: %w", text, err)
		}
		other := &what{}
		fs := flag.NewFlagSet("pointsman sim run", flag.ContinueOnError)
		fs.SetOutput(stderr)
		other.flags(fs)
		if _, _, done := mixed(fs, append(args[:len(args):len(args)], more...), io.Discard); done {
			return fmt.Errorf("--if %q is not understood", text)
		}
		other.workload, other.ifs = w.workload, nil
		if err := other.check(); err != nil {
			return fmt.Errorf("--if %q: %w", text, err)
		}
		w.others = append(w.others, other)
	}
	return nil
}

// flagsOf turns the words of --if into flags.
func flagsOf(text string) ([]string, error) {
	var out []string
	for word := range strings.FieldsSeq(text) {
		word = strings.TrimLeft(word, "-")
		name, _, ok := strings.Cut(word, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("%q is not FLAG=VALUE, as in gates=off", word)
		case slices.Contains([]string{"if", "html", "json", "seeds", "first-seed"}, name):
			return nil, fmt.Errorf("--%s holds for all rows: write it beside --if", name)
		}
		out = append(out, "--"+word)
	}
	if out == nil {
		return nil, fmt.Errorf("it is empty, want FLAG=VALUE, as in gates=off")
	}
	return out, nil
}

// rows lists the runs that were asked for, by variant: of w itself, then of each --if.
func (w *what) rows() (src *source, variants []variant, runs []*oneRun, err error) {
	for i, one := range append([]*what{w}, w.others...) {
		own, err := one.variants()
		if err != nil {
			return nil, nil, nil, err
		}
		if len(w.others) > 0 {
			if len(own) > 1 {
				return nil, nil, nil, fmt.Errorf("--if compares single rows: name one policy and one number of --endpoints")
			}
			own[0].name = asGiven
			if i > 0 {
				own[0].name = "if " + w.ifs[i-1]
			}
		}
		from, err := one.like(src, w)
		if err != nil {
			return nil, nil, nil, err
		}
		if i == 0 {
			src = from
		}
		variants = append(variants, own...)
		runs = append(runs, one.runs(from, own)...)
	}
	return src, variants, runs, nil
}

// like finds the workload, without reading a trace once more that was read for of.
func (w *what) like(src *source, of *what) (*source, error) {
	if src == nil || src.trace == nil || w.pool != of.pool {
		return w.source()
	}
	return w.placed(&source{name: src.name, trace: src.trace})
}
