package extproc

import (
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
	if _, common := c.picked(); common.Status != extprocv3.CommonResponse_CONTINUE_AND_REPLACE || string(common.GetBodyMutation().GetBody()) != chatBody {
		t.Errorf("the headers are answered with %v", common)
	}
	c.answerHeaders("200", "application/json", false)
	c.send(responseBody(`{}`, false))
	c.piece()
	c.send(responseTrailers())
	if m := c.recv(); m.GetResponseTrailers() == nil {
		t.Errorf("want an answer to the trailers, got %v", m)
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

// TestEnvoysOwn503: Envoy answers 503 both when nothing was sent and when the endpoint had the request; only the first may a client's
// library send again.
func TestEnvoysOwn503(t *testing.T) {
	const begin = "upstream connect error or disconnect/reset before headers. reset reason: "
	for body, noRetry := range map[string]bool{
		begin + "connection termination": true, begin + "remote reset": true, begin + "remote connection failure": false, begin + "connection timeout": false,
		begin + "overflow": false, "no healthy upstream": false,
	} {
		for _, trailers := range []bool{false, true} {
			r := newRig(t, endpoints(1))
			k := r.call()
			k.send(requestHeaders("POST", chat, false))
			k.send(requestBody(chatBody, true))
			k.picked()
			k.body()
			k.send(responseHeaders("503", "text/plain", false))
			k.send(responseBody(body, !trailers))
			m := k.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()
			if got := mutated(m, headerNoRetry) == "false"; m == nil || got != noRetry {
				t.Errorf("%s: x-should-retry is false: %v, %v", body, got, m)
			}
			if got, _ := k.piece(); got != body {
				t.Errorf("the body came back as %q", got)
			}
			if trailers {
				k.send(responseTrailers())
				k.recv()
			}
			k.close()
			if rec := r.record(); rec["outcome"] != "upstream_error" {
				t.Errorf("%s: record %v", body, rec)
			}
		}
	}
}
