package acceptance

import (
	"fmt"
	"strings"
	"testing"
)

// TestEnvoyMessageTimeout: Envoy's message_timeout ends a wait in the queue in every body mode but FULL_DUPLEX_STREAMED: with an error, or, if
// failures are allowed, by sending the request on to a server that nobody picked. Its place in the queue is given up.
func TestEnvoyMessageTimeout(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	h := servers[0].hold(nil)
	g := gateway(t, list(urls...), "    queue: {max: 4}\n    full: {max_num_seqs: 1}\n", processor)
	waitReady(t, g, 1)
	through := func(mode string, open bool) string {
		return envoy(t, urls, g.ExtProc(), "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+mode,
			"failure_mode_allow: false", fmt.Sprint("failure_mode_allow: ", open), "message_timeout: 10s", "message_timeout: 0.2s")
	}
	patient, strict, lax := through("FULL_DUPLEX_STREAMED", false), through("BUFFERED", false), through("BUFFERED", true)
	told, timed, passed := make(chan string, 2), make(chan string, 1), make(chan string, 1)
	go tellEnvoy(t, patient, told)
	eventually(t, patience, func() string { return unless(h.seen.Load() == 1, "the first is not there") })
	go tellEnvoy(t, patient, told)
	waitingAre(t, g, 1)
	go tellEnvoy(t, strict, timed)
	if text := <-timed; !strings.HasPrefix(text, "504 ") {
		t.Errorf("one that waits longer than message_timeout is told %q", text)
	}
	go tellEnvoy(t, lax, passed)
	eventually(t, patience, func() string { return unless(h.seen.Load() == 2, "the server has not got what nobody picked") })
	waitingAre(t, g, 1)
	h.let(3)
	for range 2 {
		if text := <-told; !strings.HasPrefix(text, "200 ") {
			t.Errorf("one that waited in FULL_DUPLEX_STREAMED is told %q", text)
		}
	}
	if text := <-passed; !strings.HasPrefix(text, "200 ") {
		t.Errorf("the one that nobody picked for is told %q", text)
	}
}
