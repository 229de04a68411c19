package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file, or writes the file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// files lists the names of testdata/<folder>/*.yaml without their ending.
func files(t *testing.T, folder string, atLeast int) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.yaml"))
	if err != nil || len(paths) < atLeast {
		t.Fatalf("%d files in testdata/%s, want %d at least (%v)", len(paths), folder, atLeast, err)
	}
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(p), ".yaml")
	}
	return paths
}

// Every bad file is refused with exactly the text beside it: the texts are the manual of what goes wrong.
func TestBadFiles(t *testing.T) {
	for _, name := range files(t, "bad", 50) {
		t.Run(name, func(t *testing.T) {
			t.Chdir(filepath.Join("testdata", "bad"))
			c, err := Load(name + ".yaml")
			if err == nil {
				t.Fatalf("accepted as\n%s", c.YAML())
			}
			golden(t, name+".txt", err.Error()+"\n")
			checkErrors(t, name+".yaml", err)
		})
	}
}

// secrets are what the bad files hold in places where people write keys.
func secrets() []string {
	return []string{"sk-0", "7f3b9a2c", "hunter2", "hun%ter2", "admin:h", "token=abc", "first-line", "second-line", "schl", "kkkkkk"}
}

// checkErrors demands what every error must have, whatever its text.
func checkErrors(t *testing.T, file string, err error) {
	t.Helper()
	var all Errors
	if !errors.As(err, &all) || len(all) == 0 {
		t.Fatalf("the error is a %T, want Errors", err)
	}
	if !slices.IsSortedFunc(all, func(a, b *Error) int { return a.Line - b.Line }) {
		t.Errorf("not sorted by line:\n%v", err)
	}
	for _, e := range all {
		if e.File != file || e.Line < 1 || e.Column < 1 {
			t.Errorf("no place: %v", e)
		}
		if e.Hint == "" {
			t.Errorf("no suggestion: %v", e)
		}
		if e.Rule == "" || strings.Contains(e.Error(), "\n") {
			t.Errorf("no rule, or not one line: %q", e.Error())
		}
		if e.Key == "" && !strings.Contains(e.Rule, "YAML") && !strings.Contains(e.Rule, "document") && !strings.Contains(e.Rule, "mapping") && !strings.Contains(e.Rule, "bytes") {
			t.Errorf("no key: %v", e)
		}
	}
	for _, secret := range secrets() {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows %q:\n%v", secret, err)
		}
	}
}

// Every good file reads as the golden beside it says, and the golden reads as itself.
func TestGoodFiles(t *testing.T) {
	for _, name := range files(t, "good", 5) {
		t.Run(name, func(t *testing.T) {
			t.Chdir(filepath.Join("testdata", "good"))
			if name == "warnings" {
				// Git keeps no modes beyond the executable bit.
				if err := os.Chmod("keys/open", 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod("keys/chat", 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Load(name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			text := c.YAML()
			var warnings strings.Builder
			for _, w := range c.Warnings {
				warnings.WriteString("# " + w.Error() + "\n")
			}
			golden(t, name+".golden", text+warnings.String())
			again, err := Parse(name+".golden", []byte(text))
			if err != nil {
				t.Fatalf("the written file is refused: %v\n%s", err, text)
			}
			again.Path, again.Warnings, c.Warnings = c.Path, nil, nil
			if diff := cmp.Diff(c, again, cmp.AllowUnexported(Secret{})); diff != "" {
				t.Errorf("changed by the round trip (-first +second):\n%s", diff)
			}
			if strings.Contains(text, "test-key") {
				t.Errorf("the key is shown:\n%s", text)
			}
		})
	}
}
