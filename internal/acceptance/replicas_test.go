package acceptance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// Three processes of the gateway in front of simulated model servers: what becomes of them when one is stopped, killed or restarted.

// replicas starts n gateways in front of the endpoints, that exchange their picks or not. Others are addresses of peers that never take
// part.
func replicas(t *testing.T, bin string, n int, exchange bool, urls []string, others ...string) []*program {
	t.Helper()
	addresses := make([]string, n)
	for i := range addresses {
		addresses[i] = loopback.Free(t)
	}
	all := make([]*program, n)
	for i := range all {
		text := "pools:\n  - {name: chat, " + list(urls...) + "}\n"
		if exchange {
			text += fmt.Sprintf("peers:\n  listen: %s\n  list: [%s]\n", addresses[i], strings.Join(append(addresses, others...), ", "))
		}
		all[i] = serveBuilt(t, bin, text)
	}
	for _, p := range all {
		p.settled(t, len(urls))
		if exchange {
			p.connected(t, n-1)
		}
	}
	return all
}

// settled waits until n endpoints are ready and report.
func (p *program) settled(t *testing.T, n int) {
	t.Helper()
	eventually(t, patience, func() string {
		all := p.pools(t)[0].Endpoints
		for _, e := range all {
			if e.State != "ready" || e.ReportAge == nil {
				return e.Name + " is " + e.State
			}
		}
		if len(all) != n {
			return fmt.Sprintf("%d endpoints", len(all))
		}
		return ""
	})
}

// connected waits until at least n peers are.
func (p *program) connected(t *testing.T, n int) {
	t.Helper()
	eventually(t, patience, func() string {
		if got := gauge(t, p, `pointsman_peers{state="connected"}`); !(got >= float64(n)) {
			return fmt.Sprintf("%v peers are connected, want %d", got, n)
		}
		return ""
	})
}

// again starts a gateway that ended with the configuration that it had.
func (p *program) again(t *testing.T, bin string) *program {
	t.Helper()
	config, err := os.ReadFile(p.config)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(config), "debug_headers: true\n")
	return serveBuilt(t, bin, text)
}

// says counts the lines of its log that hold all of some words.
func (p *program) says(words ...string) (n int) {
	raw, _ := os.ReadFile(p.log)
	for line := range strings.Lines(string(raw)) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// gauge reads a series of a gateway's metrics; NaN without it.
func gauge(t *testing.T, p *program, series string) float64 {
	t.Helper()
	r, err := http.Get(p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, _ := io.ReadAll(r.Body)
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return math.NaN()
}

// cpu is the processor time that a process has had.
func (p *program) cpu(t *testing.T) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Skip(err)
	}
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// observed is one streamed answer as its client saw it.
type observed struct {
	err              error
	endpoint         string
	ttft, rest       time.Duration
	prompt, cached   int
	generated, parts int
}

// stream asks for one answer.
func stream(c *http.Client, api string, messages []message, tokens int) (o observed) {
	raw, _ := json.Marshal(map[string]any{"model": "m", "messages": messages, "max_tokens": tokens, "ignore_eos": true, "stream": true,
		"stream_options": map[string]any{"include_usage": true}})
	start := time.Now()
	r, err := c.Post(api+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		return observed{err: err}
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return observed{err: fmt.Errorf("status %d", r.StatusCode)}
	}
	o.endpoint = r.Header.Get("x-pointsman-endpoint")
	o.err = io.ErrUnexpectedEOF
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			o.err = nil
		case o.parts == 1: // the first one holds a role, the second a token
			o.ttft = time.Since(start)
			o.parts++
		default:
			o.parts++
			o.usage(data)
		}
	}
	o.rest = time.Since(start) - o.ttft
	return o
}

func (o *observed) usage(data string) {
	var chunk struct {
		Usage *struct {
			Prompt    int `json:"prompt_tokens"`
			Generated int `json:"completion_tokens"`
			Details   struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal([]byte(data), &chunk) == nil && chunk.Usage != nil {
		o.prompt, o.generated, o.cached = chunk.Usage.Prompt, chunk.Usage.Generated, chunk.Usage.Details.Cached
	}
}
