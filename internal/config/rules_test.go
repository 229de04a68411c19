package config

import (
	"fmt"
	"strings"
	"testing"
)

// The ends of every range are inside it, the next value is not.
func TestRanges(t *testing.T) {
	for _, c := range []struct {
		key      string
		good     []string
		bad      []string
		badRules string
	}{
		{"limit", []string{"100ms", "168h"}, []string{"99ms", "168h1s"}, "must be at"},
		{"first_byte", []string{"100ms", "60m"}, []string{"99ms", "169h"}, "must be at"},
		{"idle", []string{"100ms", "1h"}, []string{"0s", "169h"}, "must be at"},
		{"drain", []string{"0", "0s", "168h"}, []string{"-1s", "169h"}, "must "},
		{"drain_delay", []string{"0", "10m"}, []string{"-1s", "11m"}, "must "},
		{"keepalive", []string{"0", "0s", "1s", "10m"}, []string{"999ms", "11m", "-1s"}, "must "},
		{"pools[].queue.max", []string{"0", "100000"}, []string{"-1", "100001"}, "must be at"},
		{"pools[].queue.wait", []string{"0", "1ms", "168h"}, []string{"-1ms", "169h"}, "must "},
		{"pools[].warm", []string{"[{prompt: 1}]", "[{prompt: 1000000, output: 10000, at_once: 256}]"},
			[]string{"[{prompt: 0}]", "[{prompt: 1, output: 0}]", "[{prompt: 1, at_once: 257}]", "[{prompt: 1, output: 10001}]"}, "must be at"},
		{"pools[].warm", nil, []string{"[{output: 4}]", "[{}]"}, "has no prompt; write how many tokens it has: {prompt: 2000}"},
		{"pools[].hold", []string{"0", "30s", "168h"}, []string{"-1s", "169h"}, "must "},
		{"models[].limit", []string{"100ms", "168h"}, []string{"0s", "169h"}, "must be at"},
		{"cut_stream", []string{"both", "error_event", "abort"}, []string{"none", "3"}, "want one of"},
		{"max_body", []string{"1KiB", "1024", "4GiB", "0.5MiB"}, []string{"1023", "4097MiB"}, "must be at"},
		{"pools[].full.waiting", []string{"1", "10000", "0x10", "1_000"}, []string{"0", "10001", "-1"}, "must be at"},
		{"pools[].full.max_num_seqs", []string{"auto", `"auto"`, "1", "100000"}, []string{"0", "100001"}, "must be at"},
		{"pools[].full.long_prompt", []string{"1", "100000000"}, []string{"0", "100000001"}, "must be at"},
		{"pools[].full.projected_kv", []string{"0.0001", "1", "1.0", "9e-1"}, []string{"0", "-0.5", "1.01", "101", "1e9", ".inf", "-.inf"}, "above 0 and up to 1"},
		{"listen", []string{"127.0.0.1:0", ":65535", "'[::1]:80'", "localhost:8080"}, []string{":65536", ":-1", ":+1", "':'", "a b:80", "..:80", "10.0.0:80"}, "the "},
		{"debug_headers", []string{"true", "false"}, []string{"t", `"true"`, "1"}, "true or false"},
		{"log.level", []string{"debug", "info", "warn", "error"}, []string{"DEBUGGING", "4", "off"}, "want one of"},
	} {
		for _, v := range c.good {
			if _, err := Parse("x.yaml", []byte(withKey(c.key, v))); err != nil {
				t.Errorf("%s: %s: %v", c.key, v, err)
			}
		}
		for _, v := range c.bad {
			_, err := Parse("x.yaml", []byte(withKey(c.key, v)))
			if err == nil || !strings.Contains(err.Error(), c.badRules) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %s: got %v, want one error with %q", c.key, v, err, c.badRules)
			}
		}
	}
}

// An endpoint that is certainly the gateway itself is refused; one that may be another machine's is not.
func TestReaches(t *testing.T) {
	for _, c := range []struct {
		endpoint, listen string
		want             bool
	}{
		{"http://127.0.0.1:8080", "0.0.0.0:8080", true},
		{"http://127.0.0.2:8080", ":8080", true},
		{"http://localhost:8080", "[::]:8080", true},
		{"http://[::1]:8080", "0.0.0.0:8080", true},
		{"http://10.0.0.3:8080", "10.0.0.3:8080", true},
		{"http://localhost:8080", "127.0.0.1:8080", true},
		{"http://127.0.0.1:8080", "localhost:8080", true},
		{"http://10.0.0.3:8080", "0.0.0.0:8080", false},
		{"http://127.0.0.1:8081", "0.0.0.0:8080", false},
		{"http://127.0.0.1:8080", "10.0.0.3:8080", false},
		{"http://localhost:8080", "10.0.0.3:8080", false},
		{"http://127.0.0.2:8080", "127.0.0.1:8080", false},
		{"http://127.0.0.1:0", "127.0.0.1:0", false},
	} {
		if got := reaches(c.endpoint, c.listen); got != c.want {
			t.Errorf("reaches(%s, %s) = %v, want %v", c.endpoint, c.listen, got, c.want)
		}
	}
}

// Files and lists have an end, and the error says where it is.
func TestTooMuch(t *testing.T) {
	if _, err := Parse("x.yaml", []byte(onePool+"# "+strings.Repeat("x", maxFile))); err == nil || !strings.Contains(err.Error(), "more than 1048576") {
		t.Errorf("a file above the limit: %v", err)
	}
	var b strings.Builder
	b.WriteString("pools:\n")
	for i := range maxPools + 1 {
		fmt.Fprintf(&b, "  - {name: p%d, endpoints: [http://h:%d]}\n", i, i+1)
	}
	b.WriteString("models: [{name: m, pools: [p1, p2]}]\n") // which say nothing wrong
	if _, err := Parse("x.yaml", []byte(b.String())); err == nil || err.Error() != "x.yaml:2:3: pools: has 257 entries, more than 256; split it" {
		t.Errorf("too many pools: %v", err)
	}
}

// A colon with a blank beside it is a key's, in flow lists too: it must not be joined into a text.
func TestFlowColonsOfKeys(t *testing.T) {
	for _, list := range []string{"[chat: x]", "[chat : x]", "[chat :x]"} {
		_, err := Parse("x.yaml", []byte(onePool+"models: [{name: a, serves: b, pools: "+list+"}]"))
		if err == nil || !strings.Contains(err.Error(), "models[0].pools[0].chat: unknown key") {
			t.Errorf("%s: %v", list, err)
		}
	}
}

// An unknown pool is not reported when a pool's own name could not be read: that error says it all.
func TestOneMistakeOneError(t *testing.T) {
	for _, text := range []string{
		"pools: [{name: Chat, endpoints: [http://h:1]}]\nmodels: [{name: a, serves: b, pools: [Chat]}]",
		"pools: [{nane: chat, endpoints: [http://h:1], name: c}]",
		"pools: [{name: a, endpoints: [h:1]}]",
		"pools: [{name: a, endpoints: []}]",
		"pools: 3",
		"listen: 7\npools: [{name: a, endpoints: [http://localhost:8080]}]",
		"pools: []",
		"admin: 7\nlisten: :9090\n" + onePool,
		onePool + "models: [{name: a, serves: b, pools: [3]}]",
	} {
		_, err := Parse("x.yaml", []byte(text))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s\ngot %v\nwant one error", text, err)
		}
	}
}
