package acceptance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pointsman.dev/pointsman/internal/pool"
)

// program is a running `pointsman serve` with a configuration file.
type program struct {
	cmd        *exec.Cmd
	config     string
	log        string
	api, admin string
}

// API and Admin are base URLs.
func (p *program) API() string   { return p.api }
func (p *program) Admin() string { return p.admin }

// serveFile builds the program and serves the configuration, listening on free ports of loopback.
func serveFile(t *testing.T, pools string) *program {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	return serveBuilt(t, bin, pools)
}

// serveBuilt is serveFile of a program that was built before.
func serveBuilt(t *testing.T, bin, pools string) *program {
	t.Helper()
	dir := t.TempDir()
	p := &program{config: filepath.Join(dir, "pointsman.yaml"), log: filepath.Join(dir, "log")}
	p.write(t, pools)
	logFile, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(bin, "serve", "--config", p.config)
	p.cmd.Stderr = logFile
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait(); logFile.Close() })
	line := p.waitLog(t, "msg=listening")
	p.api, p.admin = "http://"+field(line, "api="), "http://"+field(line, "admin=")
	return p
}

func (p *program) write(t *testing.T, pools string) {
	t.Helper()
	text := "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndebug_headers: true\n" + pools
	if !strings.Contains(pools, "limit:") {
		text = "limit: 2m\n" + text
	}
	if err := os.WriteFile(p.config+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.config+".new", p.config); err != nil {
		t.Fatal(err)
	}
}

// waitLog waits for a line of the program's log and returns it.
func (p *program) waitLog(t *testing.T, part string) string {
	t.Helper()
	found := ""
	eventually(t, patience, func() string {
		raw, _ := os.ReadFile(p.log)
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, part) {
				found = line
				return ""
			}
		}
		return fmt.Sprintf("no line with %q in the log:\n%s", part, raw)
	})
	return found
}

func (p *program) pools(t *testing.T) []pool.Status {
	t.Helper()
	r, err := http.Get(p.admin + "/api/status")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var out struct {
		Pools []pool.Status `json:"pools"`
	}
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out.Pools
}

// A changed file and SIGHUP put a new configuration in force; a broken file changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	_, urls := fleet(t, 3)
	p := serveFile(t, "pools:\n  - {name: a, endpoints: ["+urls[0]+"]}\n")
	endpoints := func() string {
		out := ""
		for _, s := range p.pools(t) {
			out += fmt.Sprintf("%s:%d ", s.Name, len(s.Endpoints))
		}
		return strings.TrimSpace(out)
	}
	wait := func(want string) {
		t.Helper()
		eventually(t, patience, func() string {
			if got := endpoints(); got != want {
				return fmt.Sprintf("pools are %q, want %q", got, want)
			}
			return ""
		})
	}
	wait("a:1")
	p.write(t, "pools:\n  - {name: a, endpoints: ["+urls[0]+", "+urls[1]+"]}\n  - {name: b, endpoints: ["+urls[2]+"]}\n")
	wait("a:2 b:1")
	p.write(t, "polls: []\n")
	p.waitLog(t, "reload refused")
	if got := endpoints(); got != "a:2 b:1" {
		t.Errorf("after a broken file the pools are %q", got)
	}
	p.write(t, "pools:\n  - {name: b, endpoints: ["+urls[2]+"]}\n")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("b:1")
	if a := post(http.DefaultClient, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "hello"}}, 4)); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}
