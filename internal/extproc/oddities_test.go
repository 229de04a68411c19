package extproc

import (
	"context"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// What the real Envoy was seen to do, and what it must get for it.

// TestTrailers: a body that trailers end goes back whole with the pick, and those of the answer are answered behind its body.
func TestTrailers(t *testing.T) {
	r := newRig(t, endpoints(2))
	c := r.call()
	c.send(requestHeaders("POST", chat, false))
	c.send(requestBody(chatBody[:10], false))
	c.send(requestBody(chatBody[10:], false))
	c.send(requestTrailers())
	pick, common := c.picked()
	if common.Status != extprocv3.CommonResponse_CONTINUE_AND_REPLACE || string(common.GetBodyMutation().GetBody()) != chatBody {
		t.Errorf("the headers are answered with %v", common)
	}
	c.answerHeaders("200", "application/json", false)
	c.send(responseBody(`{}`, false))
	c.piece()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{
		Trailers: headerMap("x-fine", "1", "x-data-parallel-rank", "3", "x-where", first(pick))}}})
	if m := c.recv().GetResponseTrailers(); m == nil || strings.Join(m.GetHeaderMutation().GetRemoveHeaders(), " ") != "x-data-parallel-rank x-where" {
		t.Errorf("the trailers are answered with %v", m)
	}
	c.close()
	if rec := r.record(); rec["outcome"] != "ok" {
		t.Errorf("record %v", rec)
	}
}

// TestLastPieceTwice: Envoy may say the last piece of a body again; it is neither kept nor answered.
func TestLastPieceTwice(t *testing.T) {
	r := newRig(t, endpoints(1))
	c := r.call()
	c.send(requestHeaders("POST", chat, false))
	c.send(requestBody(chatBody[:10], false))
	c.send(requestBody(chatBody[10:], true))
	c.send(requestBody(chatBody[10:], true))
	c.picked()
	if got := c.body(); got != chatBody {
		t.Errorf("came back as %q", got)
	}
	c.answerHeaders("200", "application/json", true)
	c.close()
	if rec := r.record(); rec["outcome"] != "ok" {
		t.Errorf("record %v", rec)
	}
}

// TestHeldHeaders: a gateway that shows no body of a 503 before its headers are answered does not wait for ever.
func TestHeldHeaders(t *testing.T) {
	r := newRig(t, endpoints(1))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.server.Run(ctx) }()
	defer func() { cancel(); <-done }()
	k := r.call()
	k.send(requestHeaders("POST", chat, false))
	k.send(requestBody(chatBody, true))
	k.picked()
	k.body()
	if m := k.answerHeaders("503", "text/plain; charset=utf-8", false); m == nil || mutated(m, headerID) == "" {
		t.Errorf("the headers are answered with %v", m)
	}
	k.send(responseBody("later", true))
	if got, end := k.piece(); got != "later" || !end {
		t.Errorf("the body came back as %q, end %v", got, end)
	}
	k.close()
}
