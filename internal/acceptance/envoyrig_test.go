package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// envoyPath is the real Envoy; the test is skipped where it is not installed.
func envoyPath(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"../../out/bin/envoy", "envoy"} {
		if full, err := exec.LookPath(p); err == nil {
			if abs, err := filepath.Abs(full); err == nil {
				return abs
			}
		}
	}
	t.Skip("needs Envoy: `make tools` installs it")
	return ""
}

// exampleEnvoy is the configuration that is shipped, changed by pairs of old and new text, each of which must be there.
func exampleEnvoy(t *testing.T, pairs ...string) string {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the example has no %q", pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// envoy starts Envoy on the shipped configuration, with these endpoints and this processor, and returns the base URL of its API.
func envoy(t *testing.T, endpoints []string, processor string, pairs ...string) string {
	t.Helper()
	path := envoyPath(t)
	port := envoyPort(t)
	var list strings.Builder
	for _, e := range endpoints {
		host, p, err := net.SplitHostPort(strings.TrimPrefix(e, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&list, "              - endpoint: {address: {socket_address: {address: %s, port_value: %s}}}\n", host, p)
	}
	_, epp, _ := net.SplitHostPort(processor)
	text := exampleEnvoy(t, append([]string{
		"address: 0.0.0.0, port_value: 8080", "address: 127.0.0.1, port_value: " + port,
		"              - endpoint: {address: {socket_address: {address: 10.0.0.3, port_value: 8000}}}\n              - endpoint: {address: {socket_address: {address: 10.0.0.4, port_value: 8000}}}\n", list.String(),
		"port_value: 9002", "port_value: " + epp}, pairs...)...)
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(path, "-c", file, "--disable-hot-restart", "--concurrency", "1", "-l", "warn")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Envoy says:\n%s", log.String())
		}
	})
	base := "http://127.0.0.1:" + port
	eventually(t, patience, func() string {
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
		if err != nil {
			return err.Error()
		}
		_ = c.Close()
		return ""
	})
	return base
}

func envoyPort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(loopback.Free(t))
	return port
}

// askEnvoy posts a body and returns the answer, whose body the caller closes.
func askEnvoy(t *testing.T, c *http.Client, url, body string) (*http.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return c.Do(r)
}

// processor is the YAML that gives a gateway an external processor.
const processor = "extproc: {listen: \"127.0.0.1:0\"}\n"
