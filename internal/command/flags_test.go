package command

import (
	"bytes"
	"flag"
	"fmt"
	"testing"
)

// Help goes where it can be paged; a fault is one line that names the flag.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		args     []string
		code     int
		done     bool
		out, err string
	}{
		{[]string{"--beads", "3", "x"}, 0, false, "", ""},
		{[]string{"--help"}, 0, true, "Usage: abacus add\n", ""},
		{[]string{"-h"}, 0, true, "Usage: abacus add\n", ""},
		{[]string{"--bead", "3"}, 2, true, "", "abacus add: there is no flag --bead: did you mean --beads? (see abacus add --help)\n"},
		{[]string{"--zzz"}, 2, true, "", "abacus add: there is no flag --zzz (see abacus add --help)\n"},
		{[]string{"--beads", "three"}, 2, true, "", "abacus add: invalid value \"three\" for --beads: parse error (see abacus add --help)\n"},
		{[]string{"--beads"}, 2, true, "", "abacus add: flag needs an argument: --beads (see abacus add --help)\n"},
	} {
		var out, errs bytes.Buffer
		fs := flag.NewFlagSet("abacus add", flag.ContinueOnError)
		fs.SetOutput(&errs)
		fs.Int("beads", 0, "")
		fs.Usage = func() { fmt.Fprintln(fs.Output(), "Usage: abacus add") }
		code, done := Parse(fs, c.args, &out)
		if code != c.code || done != c.done || out.String() != c.out || errs.String() != c.err {
			t.Errorf("%q: %d %v, stdout %q, stderr %q", c.args, code, done, out.String(), errs.String())
		}
	}
}
