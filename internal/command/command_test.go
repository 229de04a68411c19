package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const list = `Counts.

Usage:
  abacus add  N...  the sum
  abacus take N M   the difference

Beads are extra.
`

func TestDispatch(t *testing.T) {
	run := func(_ context.Context, args []string, stdout, _ io.Writer) int {
		fmt.Fprint(stdout, args)
		return len(args)
	}
	set := Set{Program: "abacus", About: "Counts.", More: "Beads are extra.",
		Commands: []Command{{"add", "N...", "the sum", run}, {"take", "N M", "the difference", nil}}}
	for _, c := range []struct {
		args     string
		code     int
		out, err string
	}{
		{"", 2, "", list},
		{"help", 0, list, ""},
		{"--help add", 0, list, ""},
		{"add 1 --help 3", 3, "[1 --help 3]", ""},
		{"add", 0, "[]", ""},
		{"ad 1", 2, "", "abacus: there is no command \"ad\"; did you mean \"add\"?\nRun `abacus --help` for the list.\n"},
		{"multiply", 2, "", "abacus: there is no command \"multiply\"\nRun `abacus --help` for the list.\n"},
	} {
		var out, err bytes.Buffer
		code := set.Main(t.Context(), strings.Fields(c.args), &out, &err)
		if diff := cmp.Diff([]any{c.code, c.out, c.err}, []any{code, out.String(), err.String()}); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}
