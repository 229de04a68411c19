package proxy

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/flight"
)

func TestRequestHeaders(t *testing.T) {
	h := http.Header{}
	for _, name := range []string{"x-pointsman-endpoint", "X-Pointsman-Whatever", "x-data-parallel-rank", "x-gateway-destination-endpoint",
		"x-prefiller-host-port", "x-smg-target-worker"} {
		h.Set(name, "1")
	}
	h.Set("Expect", "100-continue")
	h.Set("Accept-Encoding", "gzip, br")
	h.Set("Authorization", "Bearer client")
	h.Set("X-Api-Key", "client")
	h.Set("X-Custom", "stays")
	h.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	plain := h.Clone()
	cleanRequest(plain, []string{"id1"})
	want := http.Header{"Accept-Encoding": {"identity"}, "X-Request-Id": {"id1"}, "Authorization": {"Bearer client"}, "X-Api-Key": {"client"},
		"X-Custom": {"stays"}, "Traceparent": h["Traceparent"]}
	sameHeader(t, plain, want)
	cleanRequest(h, []string{"id1"})
	setKey(h, "pool")
	want["Authorization"] = []string{"Bearer pool"}
	delete(want, "X-Api-Key")
	sameHeader(t, h, want)
}

func sameHeader(t *testing.T, got, want http.Header) {
	t.Helper()
	for k := range want {
		if !slices.Equal(got[k], want[k]) {
			t.Errorf("%s: got %q, want %q", k, got[k], want[k])
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %q should not be there", k, got[k])
		}
	}
}

func TestResponseHeaders(t *testing.T) {
	const endpoint = "10.0.0.3:8000"
	h := http.Header{
		"Server": {"uvicorn"}, "Date": {"now"}, "Content-Type": {"application/json"}, "X-Request-Id": {"a"},
		"X-Pointsman-Reason": {"forged"}, "Endpoint-Load-Metrics": {"JSON {}"}, "X-Served-By": {"pod at 10.0.0.3:8000"},
		"Location": {"http://10.0.0.3:8000/v1/models/?a=b"}, "Alt-Svc": {`h3=":8000"`},
	}
	cleanResponse(h, endpoint)
	sameHeader(t, h, http.Header{"Date": {"now"}, "Content-Type": {"application/json"}, "X-Request-Id": {"a"}, "Location": {"/v1/models/?a=b"}})
}

func TestPathOnly(t *testing.T) {
	for in, want := range map[string]string{
		"http://10.0.0.3:8000/a/b?c=d": "/a/b?c=d", "//10.0.0.3/x": "/x", "/plain": "/plain", "relative": "relative", "": "/",
		"http://h": "/", "http://h//evil/x": "/", ":bad": "/", "http:opaque:10.0.0.3": "/",
	} {
		if got := pathOnly(in); got != want {
			t.Errorf("pathOnly(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestForwardedHeaders(t *testing.T) {
	in := httptest.NewRequest("POST", "http://api.example/v1/chat/completions", nil)
	in.RemoteAddr = "192.0.2.7:4711"
	in.Header["X-Forwarded-For"] = []string{"198.51.100.1", "198.51.100.2"}
	in.TLS = &tls.ConnectionState{}
	out := in.Clone(t.Context())
	out.Header = http.Header{}
	forward(&httputil.ProxyRequest{In: in, Out: out})
	sameHeader(t, out.Header, http.Header{"X-Forwarded-For": {"198.51.100.1, 198.51.100.2, 192.0.2.7"}, "X-Forwarded-Host": {"api.example"},
		"X-Forwarded-Proto": {"https"}})
}

func TestRequestID(t *testing.T) {
	const maxRequestID = 128
	for _, id := range []string{"abc", "req_01:2/3", strings.Repeat("a", maxRequestID)} {
		if got := requestID(http.Header{"X-Request-Id": {id}}); got != id {
			t.Errorf("sane id %q became %q", id, got)
		}
	}
	seen := map[string]bool{}
	for _, ids := range [][]string{nil, {""}, {"a", "b"}, {"with space"}, {"<script>"}, {"é"}, {strings.Repeat("a", maxRequestID+1)}, {"a\nb"}} {
		got := requestID(http.Header{"X-Request-Id": ids})
		if len(got) != 24 || seen[got] {
			t.Errorf("ids %q gave %q", ids, got)
		}
		seen[got] = true
	}
}

// FuzzHeaders holds the rules for any header: nothing that steers goes to an endpoint, nothing that tells of the
// endpoint goes to a client, and what is none of our business stays.
func FuzzHeaders(f *testing.F) {
	f.Add("x-pointsman-endpoint", "10.0.0.3:8000", "key")
	f.Add("Location", "http://10.0.0.3:8000/x", "")
	f.Add("X-Data-Parallel-Rank", "3", "")
	f.Add("location", "http://u:p@10.0.0.3:8000", "k")
	f.Add("content-location", "\x00http://10.0.0.3:8000", "")
	f.Fuzz(func(t *testing.T, name, value, key string) {
		const endpoint = "10.0.0.3:8000"
		name = textproto.CanonicalMIMEHeaderKey(name)
		h := http.Header{name: {value}}
		cleanRequest(h, []string{"id"})
		if key != "" {
			setKey(h, key)
		}
		for k := range h {
			if flight.Routing(k) {
				t.Errorf("%q went to the endpoint", k)
			}
		}
		if key != "" && h.Get("Authorization") != "Bearer "+key {
			t.Errorf("Authorization %q", h.Get("Authorization"))
		}
		h = http.Header{name: {value}}
		cleanResponse(h, endpoint)
		for k, vv := range h {
			if flight.Private(k) || k == "Server" {
				t.Errorf("%q went to the client", k)
			}
			for _, v := range vv {
				if strings.Contains(v, endpoint) {
					t.Errorf("%s: %q shows the endpoint", k, v)
				}
			}
		}
		if id := requestID(http.Header{"X-Request-Id": {value}}); !flight.SaneID(id) {
			t.Errorf("request id %q", id)
		}
	})
}

// TestSharedRequestID: requests to which their clients gave one id are told apart in explanations.
func TestSharedRequestID(t *testing.T) {
	r := newRig(t, []string{newEndpoint(t, answerOK).URL})
	for range 2 {
		if body, err := read(r.post(chat, chatBody, "X-Request-Id", "mine")); err != nil {
			t.Fatal(body, err)
		}
	}
	if list := r.pool.Explanations("mine"); len(list) != 2 || list[0].Number == 0 || list[0].Number == list[1].Number {
		t.Errorf("%+v", list)
	}
}
