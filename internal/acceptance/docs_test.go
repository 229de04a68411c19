package acceptance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// TestDocs runs every ```sh block of the README and the docs, in the order of the page, as a reader would: servers go to the
// background, everything else must end with success. Addresses are replaced by ones that this machine has. Not run:
// `make` (the test is part of it). YAML blocks are loaded by a test of package config.
func TestDocs(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := buildPrograms(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if lines := shellLines(string(raw)); len(lines) > 0 {
			t.Run(filepath.Base(page), func(t *testing.T) {
				t.Parallel()
				runPage(t, root, bin, string(raw), lines)
			})
		}
	}
}

func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build(t, dir+"/", "vllmsim", "pointsman")
	return dir
}

// blocks returns the bodies of the fenced blocks with that word.
func blocks(page, word string) []string {
	var list []string
	for _, part := range strings.Split(page, "```"+word+"\n")[1:] {
		body, _, _ := strings.Cut(part, "```")
		list = append(list, body)
	}
	return list
}

// shellLines are the commands of a page's sh blocks, continued lines joined, without comments.
func shellLines(page string) []string {
	var lines []string
	for _, b := range blocks(page, "sh") {
		for line := range strings.Lines(strings.ReplaceAll(b, "\\\n", " ")) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "make ") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func runPage(t *testing.T, root, bin, page string, lines []string) {
	// A page speaks of servers at these addresses; here they are simulated.
	places := map[string]string{"127.0.0.1:8080": loopback.Free(t), "0.0.0.0:8080": "", "127.0.0.1:9090": loopback.Free(t), "127.0.0.1:8000": loopback.Free(t), "127.0.0.1:8001": loopback.Free(t)}
	for _, addr := range []string{"127.0.0.1:8081", "127.0.0.1:9081", "127.0.0.1:9091", "127.0.0.1:9092"} { // of a second replica, and between the two
		places[addr] = loopback.Free(t)
	}
	places["0.0.0.0:8080"] = places["127.0.0.1:8080"]
	for _, addr := range []string{"10.0.0.3:8000", "10.0.0.4:8000"} {
		if strings.Contains(page, addr) {
			places[addr] = loopback.Free(t)
			background(t, root, bin+"/vllmsim --model YOUR-MODEL --profile instant --listen "+places[addr], places[addr])
		}
	}
	replace := func(s string) string {
		for from, to := range places {
			s = strings.ReplaceAll(s, from, to)
		}
		return s
	}
	dir := t.TempDir()
	for _, b := range blocks(page, "yaml") {
		if name, ok := strings.CutPrefix(strings.SplitN(b, "\n", 2)[0], "# "); ok {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(replace(b)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var serving context.CancelFunc
	var pid int // of the gateway
	for _, line := range lines {
		cmd := strings.ReplaceAll(replace(line), "bin/", bin+"/")
		cmd = strings.ReplaceAll(cmd, "REQUEST_ID", "")
		cmd = strings.ReplaceAll(cmd, "$(pidof pointsman)", strconv.Itoa(pid))
		cmd = strings.ReplaceAll(cmd, " internal/", " "+root+"/internal/")
		cmd = strings.ReplaceAll(cmd, "bin/pointsman explain ", "bin/pointsman explain --admin http://"+places["127.0.0.1:9090"]+" ")
		cmd = strings.ReplaceAll(cmd, bin+"/pointsman explain", bin+"/pointsman explain --admin http://"+places["127.0.0.1:9090"])
		switch {
		case strings.Contains(cmd, "--config second.yaml"):
			background(t, dir, cmd, places["127.0.0.1:8081"])
		case strings.Contains(cmd, "/pointsman serve"):
			if serving != nil {
				serving()
			}
			if !strings.Contains(cmd, "--config") {
				cmd += " --listen " + places["127.0.0.1:8080"] + " --admin " + places["127.0.0.1:9090"]
			}
			serving, pid = background(t, dir, cmd, places["127.0.0.1:8080"])
			eventually(t, patience, func() string {
				r, err := http.Get("http://" + places["127.0.0.1:9090"] + "/readyz")
				if err != nil {
					return err.Error()
				}
				r.Body.Close()
				if r.StatusCode != 200 {
					return r.Status
				}
				return ""
			})
		case strings.Contains(cmd, "/vllmsim --"):
			_, at, _ := strings.Cut(cmd, "--listen ")
			background(t, dir, cmd, strings.Fields(at)[0])
		default:
			if strings.HasPrefix(cmd, "curl ") {
				cmd = "curl -sS " + strings.TrimPrefix(cmd, "curl ")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // pages wait without end
			run := exec.CommandContext(ctx, "bash", "-c", cmd)
			run.Dir = dir
			out, err := run.CombinedOutput()
			cancel()
			if err != nil {
				t.Errorf("%s\n%v\n%s", line, err, out)
			}
			t.Logf("%s\n%.600s", line, out)
		}
	}
}

// background starts a server and returns when its port accepts; it ends with the test or with the returned function.
func background(t *testing.T, dir, line, addr string) (end context.CancelFunc, pid int) {
	t.Helper()
	cmd := exec.Command("bash", "-c", "exec "+strings.TrimSuffix(strings.TrimSpace(line), "&"))
	cmd.Dir = dir
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			cmd.Process.Signal(syscall.SIGTERM)
			done := make(chan struct{})
			go func() { cmd.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(time.Second): // enough for a gateway; a vLLM server waits for its clients without end, and vllmsim with it
				cmd.Process.Kill()
				<-done
			}
		}
	}
	t.Cleanup(end)
	eventually(t, patience, func() string {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return fmt.Sprintf("%s: %v", line, err)
		}
		conn.Close()
		return ""
	})
	return end, cmd.Process.Pid
}
