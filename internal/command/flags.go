package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"pointsman.dev/pointsman/internal/spelling"
)

// Parse is fs.Parse for a command whose words are fs.Name(), "pointsman serve". Help that was asked for goes to stdout; what is wrong
// is one line on fs.Output(), not a page of help in which it is lost. done says that the command ends here with code.
func Parse(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	stderr, usage := fs.Output(), fs.Usage
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	err := fs.Parse(args)
	fs.SetOutput(stderr)
	fs.Usage = usage
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(stdout)
		usage()
		fs.SetOutput(stderr)
		return 0, true
	case err != nil:
		fmt.Fprintf(stderr, "%s: %s (see %s --help)\n", fs.Name(), inWords(fs, err), fs.Name())
		return 2, true
	}
	return 0, false
}

// inWords says what is wrong with a flag, and which one may have been meant.
func inWords(fs *flag.FlagSet, err error) string {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return strings.NewReplacer("for flag -", "for --", "argument: -", "argument: --").Replace(err.Error())
	}
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	near := spelling.Word(strings.ReplaceAll(name, "_", "-"), names)
	if near == "" {
		return "there is no flag --" + name
	}
	return "there is no flag --" + name + ": did you mean --" + near + "?"
}
