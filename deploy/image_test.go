package deploy

import (
	"bufio"
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the image is built with gives a program that needs nothing of the image, and knows its version.
func TestDockerfile(t *testing.T) {
	var command string
	for line := range strings.Lines(read(t, "Dockerfile")) {
		if rest, ok := strings.CutPrefix(line, "RUN CGO_ENABLED=0 "); ok {
			command = rest
		}
	}
	out := filepath.Join(t.TempDir(), "pointsman")
	if !strings.Contains(command, "-o /pointsman ") {
		t.Fatalf("no build of /pointsman: %q", command)
	}
	cmd := exec.Command("sh", "-c", strings.Replace(command, "-o /pointsman ", "-o "+out+" ", 1))
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0", "VERSION=v9.8.7")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	version, err := exec.Command(out, "version").Output()
	if err != nil || !bytes.HasPrefix(version, []byte("pointsman v9.8.7 ")) {
		t.Errorf("%v %s", err, version)
	}
	t.Run("in the image", func(t *testing.T) { inImage(t, out) })
	f, err := elf.Open(out)
	if err != nil {
		t.Skip(err) // not a Linux
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("it needs %v (%v), which scratch has not", libs, err)
	}
}

// inImage runs the program as the image and the Deployment have it: nothing else in the root, which is read-only, and no root.
func inImage(t *testing.T, program string) {
	if os.Getuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("SKIPPED: needs root and unshare")
	}
	root := t.TempDir()
	for name, data := range map[string]string{"pointsman": read(t, program),
		"pointsman.yaml": "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\npools: [{name: chat, endpoints: ['http://127.0.0.1:1']}]\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec chroot --userspec=65532:65532 "$0" /pointsman serve --config /pointsman.yaml`, root)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer last.Stop()
	var said strings.Builder
	for lines := bufio.NewScanner(log); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "msg=listening") {
			_ = cmd.Process.Signal(os.Interrupt) // ends without drain_delay
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(said.String(), "msg=drained") {
		t.Errorf("%v:\n%s", err, said.String())
	}
}
