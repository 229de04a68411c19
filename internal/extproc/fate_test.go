package extproc

import (
	"slices"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// told adds what the shipped configuration has Envoy say with the answer's headers; what is "" or 0 it does not say.
func told(m *extprocv3.ProcessingRequest, address, local, details string, attempts float64) *extprocv3.ProcessingRequest {
	fields := map[string]any{}
	for k, v := range map[string]string{keyAddress: address, keyOwn: local, keyDetails: details} {
		if v != "" {
			fields[k] = v
		}
	}
	if attempts > 0 {
		fields[keyAttempts] = attempts
	}
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	m.Attributes = map[string]*structpb.Struct{attributes: s}
	return m
}

// ejected are the endpoints that something speaks against.
func (r *rig) ejected() []string {
	list := []string{}
	for _, e := range r.pool.Status().Endpoints {
		if e.State == "ejected" {
			list = append(list, e.Name)
		}
	}
	return list
}

// sent is a request that was picked for and went out, and its picks.
func (r *rig) sent(mode filterv3.ProcessingMode_BodySendMode) (*call, []string) {
	r.t.Helper()
	k := r.call()
	h := requestHeaders("POST", chat, false)
	h.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: modeDuplex, ResponseBodyMode: mode}
	k.send(h)
	k.send(requestBody(chatBody, true))
	pick, _ := k.picked()
	k.body()
	return k, strings.Split(pick, ",")
}

// TestServed: the booking goes where the request went, and of the endpoints before that one in the pick those that Envoy has tried have failed.
func TestServed(t *testing.T) {
	for _, c := range []struct {
		name     string
		at       int // of the pick; 3: the one that is not in it; 4: nobody of the pool
		attempts float64
		failed   int // of the pick, from its beginning
		recorded string
	}{
		{"the first", 0, 1, 0, ""},
		{"the second, after the first", 1, 2, 1, "2"},
		{"the third, after both", 2, 3, 2, "3"},
		{"the second, the first is unknown to Envoy", 1, 1, 0, ""},
		{"the third, both are unknown", 2, 1, 0, ""},
		{"the third, one of two is unknown", 2, 2, 0, ""},
		{"the second, Envoy does not say after how many", 1, 0, 0, ""},
		{"none of the pick, at once", 3, 1, 0, ""},
		{"none of the pick, after some", 3, 4, 0, ""},
		{"none of the pool", 4, 1, 0, ""},
	} {
		for _, attribute := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				r := newRig(t, endpoints(4))
				k, picks := r.sent(modeDuplex)
				for _, e := range r.pool.Status().Endpoints {
					if !slices.Contains(picks, e.Name) {
						picks = append(picks, e.Name)
					}
				}
				at := append(picks, "10.9.9.9:8000")[c.at]
				m := responseHeaders("200", "application/json", false)
				if attribute {
					told(m, at, "10.1.1.1:50000", viaUpstream, c.attempts)
				} else {
					told(withMeta(m, "envoy.lb", keyServed, at), "", "10.1.1.1:50000", viaUpstream, c.attempts)
				}
				k.send(m)
				k.recv()
				booked := at
				if c.at == 4 {
					booked = picks[0]
				}
				for _, e := range r.pool.Status().Endpoints {
					if (e.InFlight == 1) != (e.Name == booked) {
						t.Errorf("%d in flight at %s, the request is at %s", e.InFlight, e.Name, booked)
					}
				}
				want := slices.Sorted(slices.Values(picks[:c.failed]))
				if got := slices.Sorted(slices.Values(r.ejected())); !slices.Equal(got, want) {
					t.Errorf("%v are ejected, want %v", got, want)
				}
				k.send(responseBody(`{}`, true))
				k.piece()
				k.close()
				if rec := r.record(); rec["endpoint"] != booked || rec["attempts"] != c.recorded || rec["outcome"] != "ok" {
					t.Errorf("record %v", rec)
				}
			})
		}
	}
}

// TestStranger: what a server answers that no pool knows says nothing of the endpoint that was picked.
func TestStranger(t *testing.T) {
	r := newRig(t, endpoints(1))
	for range 5 {
		k, _ := r.sent(modeDuplex)
		k.send(told(responseHeaders("500", "application/json", true), "10.9.9.9:8000", "10.1.1.1:50000", viaUpstream, 1))
		k.recv()
		k.close()
		if rec := r.record(); rec["outcome"] != "upstream_error" {
			t.Errorf("record %v", rec)
		}
	}
	if got := r.ejected(); len(got) > 0 {
		t.Errorf("%v is ejected", got)
	}
}

// TestEnvoysOwn: of an answer that Envoy made itself a client is told whether the request may have run, in whatever body mode, and the
// endpoint is blamed for what it has done only.
func TestEnvoysOwn(t *testing.T) {
	const reset = "upstream_reset_before_response_started"
	for _, c := range []struct {
		name, status, details string
		sent                  bool
		attempts              float64
		final                 bool
		outcome               string
		blamed                bool // when it has happened a few times
	}{
		{"connection broke", "503", reset + "{connection_termination}", true, 1, true, "upstream_error", true},
		{"no HTTP", "502", reset + "{protocol_error}", true, 1, true, "upstream_error", true},
		{"no answer in time", "504", "response_timeout", true, 1, true, "timeout", false},
		{"no connection in time", "504", "response_timeout", false, 1, false, "upstream_error", false},
		{"refused", "503", reset + "{remote_connection_failure|delayed_connect_error:_Connection_refused}", false, 3, false, "upstream_error", true},
		{"silent", "503", reset + "{connection_timeout}", false, 1, false, "upstream_error", true},
		{"no port left", "503", reset + "{local_connection_failure}", false, 1, false, "upstream_error", false},
		{"circuit breaker", "503", reset + "{overflow}", false, 1, false, "upstream_error", false},
		{"no endpoint", "503", "no_healthy_upstream", false, 1, false, "upstream_error", false},
		{"no cluster", "503", "cluster_not_found", false, 0, false, "upstream_error", false},
		{"another filter", "500", "another_filter", false, 0, false, "upstream_error", false},
		{"a redirect", "301", "direct_response", false, 0, false, "ok", false},
		{"the engine's 503", "503", viaUpstream, true, 1, false, "upstream_error", true},
		{"the engine's 500", "500", viaUpstream, true, 1, true, "upstream_error", true},
	} {
		for mode, name := range map[filterv3.ProcessingMode_BodySendMode]string{modeDuplex: "FULL_DUPLEX_STREAMED", modeStream: "STREAMED", modeBuffer: "BUFFERED", modeNone: "NONE"} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				r := newRig(t, endpoints(1))
				for range 5 {
					k, picks := r.sent(mode)
					local := ""
					if c.sent {
						local = "10.1.1.1:50000"
					}
					k.send(told(responseHeaders(c.status, "text/plain", mode == modeNone), picks[0], local, c.details, c.attempts))
					m := k.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()
					if got := mutated(m, headerNoRetry) == "false"; m == nil || got != c.final {
						t.Errorf("x-should-retry is false: %v, %v", got, m)
					}
					if mode != modeNone {
						k.send(responseBody("some text", true))
						k.recv()
					}
					k.close()
					if rec := r.record(); rec["outcome"] != c.outcome || rec["status"] != c.status {
						t.Errorf("record %v", rec)
					}
				}
				if got := len(r.ejected()) > 0; got != c.blamed {
					t.Errorf("the endpoint is ejected: %v, %v", got, r.pool.Status().Endpoints[0].State)
				}
			})
		}
	}
}

// TestEnvoys503: an Envoy that was not asked to say more answers 503 both when nothing was sent and when the endpoint had the request;
// the text of its answer tells which.
func TestEnvoys503(t *testing.T) {
	const begin = lost + ". reset reason: "
	type want struct{ final, blamed bool }
	for body, w := range map[string]want{
		begin + "connection termination":    {true, true},
		begin + "remote reset":              {true, true},
		begin + "remote connection failure": {false, true},
		lost + ". retried and the latest reset reason: remote connection failure":     {false, true},
		begin + "connection failure, transport failure reason: delayed connect error": {false, true},
		begin + "connection timeout":       {false, true},
		begin + "local connection failure": {false, false},
		begin + "overflow":                 {false, false},
		nohow:                              {false, false},
	} {
		for _, trailers := range []bool{false, true} {
			r := newRig(t, endpoints(1))
			for range 5 {
				k, _ := r.sent(modeDuplex)
				k.send(responseHeaders("503", "text/plain", false))
				k.send(responseBody(body, !trailers))
				m := k.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()
				if got := mutated(m, headerNoRetry) == "false"; m == nil || got != w.final {
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
			if got := len(r.ejected()) > 0; got != w.blamed {
				t.Errorf("%s: the endpoint is ejected: %v", body, got)
			}
		}
	}
}
