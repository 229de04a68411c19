package extproc

import (
	"context"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
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

// TestCutAll: at the end of a drain an answer that has begun ends with an error event, or breaks off by an answer of Envoy's behind its head.
// Where Envoy may go on alone it is left to.
func TestCutAll(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   filterv3.ProcessingMode_BodySendMode
		kind   string
		event  bool
		broken bool
	}{
		{"stream", modeDuplex, "text/event-stream", true, false},
		{"JSON", modeDuplex, "application/json", false, true},
		{"stream, STREAMED", modeStream, "text/event-stream", false, false},
		{"JSON, STREAMED", modeStream, "application/json", false, false},
		{"JSON, BUFFERED", modeBuffer, "application/json", false, false},
		{"JSON, NONE", modeNone, "application/json", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, endpoints(1))
			k, _ := r.sent(c.mode)
			k.answerHeaders("200", c.kind, false)
			r.server.CutAll()
			switch {
			case c.event:
				if got, end := k.piece(); !end || !strings.Contains(got, `"code":"gateway_shutdown"`) {
					t.Errorf("the client gets %q, end %v", got, end)
				}
			case c.broken:
				if i := k.refused(); i.Status.Code != 503 || mutated(i.Headers, headerNoRetry) != "false" || mutated(i.Headers, headerReason) != "shutdown" {
					t.Errorf("Envoy is told %v", i)
				}
			default:
				k.close()
				if rec := r.record(); rec["outcome"] == "cut" {
					t.Errorf("record %v", rec)
				}
				return
			}
			k.close()
			if rec := r.record(); rec["outcome"] != "cut" || rec["error_reason"] != "shutdown" || rec["status"] != "200" {
				t.Errorf("record %v", rec)
			}
		})
	}
}
