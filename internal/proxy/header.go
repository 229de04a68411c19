package proxy

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"pointsman.dev/pointsman/internal/flight"
)

// Names of the headers that Pointsman adds to answers, in the canonical form of net/http.
const (
	headerRequestID = "X-Pointsman-Request-Id" // always
	headerLimit     = "X-Pointsman-Limit"      // always: seconds that the request may take in total
	headerReason    = "X-Pointsman-Reason"     // on errors of our own: the stable machine word
	headerEndpoint  = "X-Pointsman-Endpoint"   // with debug headers only
	headerPick      = "X-Pointsman-Pick"       // with debug headers only: why that endpoint
	headerNoRetry   = "X-Should-Retry"         // "false": the official clients obey it over the status
)

// cleanRequest makes h, a client's headers without hop-by-hop ones, fit for an endpoint. id is the request's id.
func cleanRequest(h http.Header, id []string) {
	for name := range h {
		if flight.Routing(name) {
			delete(h, name)
		}
	}
	delete(h, "Expect")                  // the whole body is here already
	delete(h, "Te")                      // of this hop; ReverseProxy keeps it for gRPC
	h["Accept-Encoding"] = identityValue // a compressed stream could not be watched
	h["X-Request-Id"] = id
}

// setKey replaces whatever credential h has by a pool's key.
func setKey(h http.Header, key string) {
	h["Authorization"] = []string{"Bearer " + key}
	delete(h, "X-Api-Key")
	delete(h, "Api-Key")
}

var identityValue = []string{"identity"}

// forward sets the X-Forwarded headers of out. The chain of addresses is kept and continued; host and scheme are those
// that the client used with us.
func forward(pr *httputil.ProxyRequest) {
	client, _, err := net.SplitHostPort(pr.In.RemoteAddr)
	if err != nil {
		client = "" // not TCP: nothing to say
	}
	if prior := pr.In.Header["X-Forwarded-For"]; len(prior) > 0 {
		chain := strings.Join(prior, ", ")
		if client != "" {
			chain += ", " + client
		}
		client = chain
	}
	proto := "http"
	if pr.In.TLS != nil {
		proto = "https"
	}
	values := [3]string{client, pr.In.Host, proto} // one allocation for three header values
	if client != "" {
		pr.Out.Header["X-Forwarded-For"] = values[0:1:1]
	}
	pr.Out.Header["X-Forwarded-Host"] = values[1:2:2]
	pr.Out.Header["X-Forwarded-Proto"] = values[2:3:3]
}

// cleanResponse takes from h, an endpoint's headers, what clients are not to see: the server's make, and every value
// that holds the endpoint's address.
func cleanResponse(h http.Header, endpoint string) {
	endpoint = telling(endpoint)
	delete(h, "Server")
	delete(h, "Alt-Svc") // names the endpoint's port
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h[name]; len(v) > 0 {
			h[name] = []string{pathOnly(v[0])}
		}
	}
	for name, values := range h {
		if flight.Private(name) {
			delete(h, name)
			continue
		}
		for _, v := range values {
			if endpoint != "" && strings.Contains(v, endpoint) {
				delete(h, name)
				break
			}
		}
	}
}

// telling is what gives an endpoint (host:port) away: its IP address or full name alone, too. A name without a dot may be any word.
func telling(endpoint string) string {
	if host, _, err := net.SplitHostPort(endpoint); err == nil && strings.ContainsAny(host, ".:") {
		return host
	}
	return endpoint
}

// pathOnly cuts scheme and host off a URL, so that a redirect of the endpoint leads back to us.
func pathOnly(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "/"
	}
	u.Scheme, u.Host, u.User, u.Opaque = "", "", nil, ""
	if out := u.String(); out != "" && !strings.HasPrefix(out, "//") {
		return out
	}
	return "/"
}

// requestID returns the client's own request id when it is sane, else a new one of 24 hexadecimal digits.
func requestID(h http.Header) string {
	if v := h["X-Request-Id"]; len(v) == 1 && flight.SaneID(v[0]) {
		return v[0]
	}
	return flight.NewID()
}
