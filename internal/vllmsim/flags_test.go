package vllmsim

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFlags(t *testing.T) {
	var out, errs bytes.Buffer
	cfg, listen, err := parseFlags(strings.Fields("--listen :0 --model a,b --max-model-len 4096 --max-num-seqs 4 --num-blocks 300 --block-size 32 "+
		"--profile tiny-cpu --speed 2 --prefix-caching=false --metrics-style vllm-0.8 --max-num-batched-tokens 512 --max-num-queued-reqs 5 "+
		"--max-num-queued-tokens 600 --api-key k --shutdown-timeout 8s --seed 3"), &out, &errs)
	if err != nil {
		t.Fatal(err, errs.String())
	}
	want := DefaultConfig()
	want.Model, want.MaxModelLen, want.MaxNumSeqs, want.NumBlocks, want.BlockSize = []string{"a", "b"}, 4096, 4, 300, 32
	want.Profile, want.Speed, want.PrefixCaching, want.MetricsStyle, want.MaxBatchedTokens = "tiny-cpu", 2, false, "vllm-0.8", 512
	want.MaxQueuedReqs, want.MaxQueuedTokens, want.APIKey, want.ShutdownTimeout, want.Seed = 5, 600, "k", 8e9, 3
	cfg.Log, want.Log = nil, nil
	if diff := cmp.Diff(want, cfg); diff != "" || listen != ":0" {
		t.Errorf("listen %s, config (-want +got):\n%s", listen, diff)
	}
}

func TestMainExitCodes(t *testing.T) {
	for args, want := range map[string]struct {
		code   int
		stdout string
		stderr string
	}{
		"--help":                               {0, "x-vllmsim-fault", ""},
		"--bogus":                              {2, "", "flag provided but not defined: -bogus"},
		"extra":                                {2, "", `unexpected "extra"`},
		"--profile none":                       {2, "", `checking profile "none": must be one of`},
		"--max-model-len 4096 --num-blocks 10": {2, "", "cannot hold one request of max-model-len 4096"},
		"--listen 300.0.0.1:1":                 {1, "", "opening 300.0.0.1:1:"},
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), strings.Fields(args), &out, &errs, nil)
		if code != want.code || !strings.Contains(out.String(), want.stdout) || !strings.Contains(errs.String(), want.stderr) {
			t.Errorf("vllmsim %s: exit %d, out %q, err %q", args, code, out.String(), errs.String())
		}
	}
}

// TestMainTerminates: the program says where it serves, and ends after the signal.
func TestMainTerminates(t *testing.T) {
	r, w := io.Pipe()
	terminate, exit := make(chan struct{}), make(chan int, 1)
	go func() {
		exit <- Main(t.Context(), []string{"--listen", "127.0.0.1:0", "--profile", "instant"}, w, io.Discard, terminate)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, url, _ := strings.Cut(strings.TrimSpace(line), " at ")
	resp, err := http.Get(url + "/health")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	terminate <- struct{}{}
	if code := <-exit; code != 0 {
		t.Errorf("exit status %d", code)
	}
}
