package app

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// check runs the command and returns what it wrote.
func check(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Check(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// The routing case that the help shows is one that runs, and one with another wish is refused with its place.
func TestCheckRoutingCase(t *testing.T) {
	code, help, _ := check(t, "--help")
	_, example, found := strings.Cut(help, "looks like this:\n\n")
	example, _, ended := strings.Cut(example, "\n\n")
	if code != 0 || !found || !ended {
		t.Fatalf("code %d, no example in the help:\n%s", code, help)
	}
	example = strings.ReplaceAll("\n"+example+"\n", "\n  ", "\n")[1:]
	good, bad := filepath.Join(t.TempDir(), "good.txtar"), filepath.Join(t.TempDir(), "bad.txtar")
	write(t, good, example)
	write(t, bad, strings.Replace(example, "pick a", "pick b", 1))

	code, stdout, stderr := check(t, good)
	if code != 0 || stdout != good+": ok: the picks are the wanted ones\n" || stderr != "" {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = check(t, bad, good)
	if code != 1 || !strings.Contains(stdout, good+": ok") || !strings.HasPrefix(stderr, bad+":") || !strings.Contains(stderr, "1 of 2 files refused") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
