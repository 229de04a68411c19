package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs are those of this module that a test of this process has built. Linking takes a second or more of a processor, and many
// tests want the same program.
var programs struct {
	sync.Mutex
	dir string
}

// build makes programs of this module as a release is made; out is a file, or a folder with a slash at its end.
func build(t *testing.T, out string, names ...string) {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "pointsman-acceptance")
		if err != nil {
			t.Fatal(err)
		}
		programs.dir = dir
	}
	for _, name := range names {
		file := filepath.Join(programs.dir, name)
		if _, err := os.Stat(file); err != nil {
			cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "pointsman.dev/pointsman/cmd/"+name)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("building %s: %v\n%s", name, err, text)
			}
		}
		to := out
		if out[len(out)-1] == '/' {
			to += name
		}
		if err := os.Link(file, to); err != nil {
			t.Fatal(err)
		}
	}
}

// removePrograms takes away what build has made.
func removePrograms() {
	programs.Lock()
	defer programs.Unlock()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
}
