package extproc

import (
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// TestConformance: behind its flag, and only then, a request header chooses the endpoint and the answer says which one served.
func TestConformance(t *testing.T) {
	for _, on := range []bool{true, false} {
		r := newRig(t, []endpoint{{"10.0.0.1:8000", 0, 0}, {"10.0.0.2:8000", 9, 0.9}}, func(c *Config) { c.Conformance = on })
		k := r.call()
		k.send(requestHeaders("POST", chat, false, headerSelection, "10.0.0.2"))
		k.send(requestBody(chatBody, true))
		pick, _ := k.picked()
		k.body()
		m := k.answerHeaders("200", "application/json", true)
		if got := first(pick) == "10.0.0.2:8000"; got != on {
			t.Errorf("flag %v: picked %s", on, pick)
		}
		if got := mutated(m, headerServed) == first(pick); got != on {
			t.Errorf("flag %v: the answer says %q", on, mutated(m, headerServed))
		}
		k.close()
	}
}

// TestBodyModes: with the other body modes Envoy waits for an answer to each message, and the pick comes when there is something to
// pick by.
func TestBodyModes(t *testing.T) {
	send := func(k *call, mode filterv3.ProcessingMode_BodySendMode, more ...string) {
		m := requestHeaders("POST", chat, false, more...)
		m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode, ResponseBodyMode: mode}
		k.send(m)
	}
	t.Run("BUFFERED", func(t *testing.T) {
		r := newRig(t, endpoints(2))
		k := r.call()
		send(k, modeBuffer)
		if m := k.recv(); m.GetRequestHeaders() == nil || m.DynamicMetadata != nil {
			t.Fatalf("the headers are answered with %v", m)
		}
		k.send(requestBody(`{"model":"fast"}`, true))
		got := k.recv().GetRequestBody().GetResponse()
		if mutated(got.GetHeaderMutation(), headerDestination) == "" || string(got.GetBodyMutation().GetBody()) != `{"model":"m"}` || mutated(got.HeaderMutation, "content-length") != "13" {
			t.Errorf("the body is answered with %v", got)
		}
		k.end()
	})
	t.Run("BUFFERED_PARTIAL", func(t *testing.T) {
		r := newRig(t, endpoints(2))
		k := r.call()
		send(k, modePartial)
		k.recv()
		k.send(requestBody(chatBody[:20], false))
		if i := k.refused(); i.Status.Code != 413 {
			t.Errorf("a part of a body: %v", i)
		}
	})
	t.Run("BUFFERED_PARTIAL, answer", func(t *testing.T) {
		r := newRig(t, endpoints(2))
		k := r.call()
		send(k, modePartial)
		k.recv()
		k.send(requestBody(chatBody, true))
		k.recv()
		k.answerHeaders("200", "application/json", false)
		k.send(responseBody(`{"half":`, false)) // what Envoy's buffer took; the rest is not shown
		if m := k.recv(); m.GetResponseBody() == nil || m.GetResponseBody().GetResponse() != nil {
			t.Errorf("a part of an answer is answered with %v", m)
		}
		k.close()
		if rec := r.record(); rec["outcome"] != "ok" {
			t.Errorf("record %v", rec)
		}
	})
	t.Run("STREAMED", func(t *testing.T) {
		r := newRig(t, endpoints(2))
		k := r.call()
		send(k, modeStream)
		if i := k.refused(); i.Status.Code != 400 {
			t.Errorf("a model that nobody names among two: %v", i)
		}
		k = r.call()
		send(k, modeStream, headerModel, "m")
		k.picked()
		k.send(requestBody(chatBody, true))
		if m := k.recv(); m.GetRequestBody() == nil || m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
			t.Errorf("the body is answered with %v", m)
		}
		k.answerHeaders("200", "text/event-stream", false)
		k.send(responseBody("data: {}\n\n", true)) // ends too early
		if got := k.recv().GetResponseBody().GetResponse().GetBodyMutation().GetBody(); !strings.HasPrefix(string(got), "data: {}\n\ndata: {\"error\":") {
			t.Errorf("the end is %q", got)
		}
		k.end()
	})
}
