package config

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// Endpoint URLs: one parser for the configuration, the flags and endpoints files.

// endpoint stores the canonical form of an endpoint's URL, scheme://host:port.
func (d *decoder) endpoint(v value, dst *string) bool {
	if v.kind != kindText {
		d.wrongKind(v, "a URL like http://10.0.0.3:8000")
		return false
	}
	canonical, rule, hint := parseEndpoint(v.text)
	if rule != "" {
		d.failShowing(v, redactURL(v.text), rule, hint)
		return false
	}
	if !hasPort(v.text) && strings.HasSuffix(canonical, ":80") {
		d.warn(v, "no port, so it is 80, and vLLM listens on 8000 unless told otherwise", "write "+strings.TrimSuffix(canonical, "80")+"8000, or "+canonical+" if that is meant")
	}
	*dst = canonical
	return true
}

// hasPort says whether an endpoint's URL, with or without scheme, names its port.
func hasPort(raw string) bool {
	if _, rest, ok := strings.Cut(raw, "://"); ok {
		raw = rest
	}
	u, err := url.Parse("http://" + raw)
	return err != nil || u.Port() != ""
}

// parseEndpoint returns the canonical form, or the rule that is broken and a hint. The texts hold nothing of a user name,
// password or query.
func parseEndpoint(raw string) (canonical, rule, hint string) {
	if raw == "" || strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", "want one URL without blanks or special characters", "like http://10.0.0.3:8000"
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "", "a URL starts with http:// or https://", bareHint(raw)
	}
	scheme = strings.ToLower(scheme)
	if scheme != "http" && scheme != "https" {
		return "", "the scheme must be http or https", "model servers speak http: http://10.0.0.3:8000"
	}
	if strings.Contains(rest, ",") {
		return "", "want one URL", "write each as an entry of its own: [http://a:8000, http://b:8000]"
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil {
		return "", "want a URL, scheme://host:port", badURLHint(rest)
	}
	if rule, hint := originRule(u, rest); rule != "" {
		return "", rule, hint
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	host := strings.ToLower(u.Hostname())
	if rule, hint := hostRule(host, scheme, port); rule != "" {
		return "", rule, hint
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String() // one spelling of an IPv6 address, so that an endpoint that is there twice is seen
	}
	return scheme + "://" + net.JoinHostPort(host, strings.TrimLeft(port, "0")), "", ""
}

// originRule is what a URL may not have beside scheme, host and port.
func originRule(u *url.URL, rest string) (rule, hint string) {
	origin := u.Scheme + "://" + u.Host
	switch {
	case u.User != nil || strings.Contains(rest, "@"):
		return "a user or password in the URL would show in metrics and logs", "write " + origin + " and put the key into api_key_file"
	case u.RawQuery != "" || u.ForceQuery:
		return "an endpoint has no query", "write " + origin
	case u.Fragment != "" || strings.Contains(rest, "#"):
		return "an endpoint has no fragment", "write " + origin
	case u.Path != "" && u.Path != "/":
		return "an endpoint has no path: requests keep their own", "write " + origin
	}
	return "", ""
}

// hostRule is what host and port of an endpoint must be.
func hostRule(host, scheme, port string) (rule, hint string) {
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "":
		return "the URL has no host", "like http://10.0.0.3:8000"
	case err == nil && ip.IsUnspecified():
		return "nothing can be reached at " + host, "write " + scheme + "://127.0.0.1:" + port + " for this machine"
	case err == nil && ip.Zone() != "":
		return "an address with a zone is not supported", "use a global or unique local address"
	case !validHost(host):
		return "the host is neither an IP address nor a name", "like http://10.0.0.3:8000 or http://vllm-0.vllm:8000"
	}
	return portRule(port, 1), "vLLM listens on 8000 unless told otherwise"
}

// bareHint guesses for a URL without a scheme.
func bareHint(raw string) string {
	if canonical, rule, _ := parseEndpoint("http://" + raw); rule == "" && !holdsSecret(raw) {
		if !hasPort(raw) {
			return "write " + strings.TrimSuffix(canonical, "80") + "8000"
		}
		return "write " + canonical
	}
	return "like http://10.0.0.3:8000"
}

// badURLHint explains what the standard parser refuses.
func badURLHint(rest string) string {
	authority, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndex(authority, ":"); i >= 0 && !strings.Contains(authority, "@") {
		if strings.Count(authority, ":") > 1 && !strings.HasPrefix(authority, "[") {
			return "an IPv6 address goes in brackets: http://[fd00::3]:8000"
		}
		if rule := portRule(authority[i+1:], 1); rule != "" {
			return rule
		}
	}
	return "like http://10.0.0.3:8000"
}

// dnsName stores a name with a port whose addresses are the endpoints.
func (d *decoder) dnsName(v value, dst *string) {
	if v.kind != kindText {
		d.wrongKind(v, "a name with a port like vllm.ns.svc:8000")
		return
	}
	if strings.Contains(v.text, "://") {
		_, rest, _ := strings.Cut(v.text, "://")
		hint := "like vllm.ns.svc:8000"
		if !strings.ContainsAny(rest, "@/?#") && strings.Contains(rest, ":") {
			hint = "write " + clip(printable(rest))
		}
		d.failShowing(v, redactURL(v.text), "want host:port without a scheme", hint)
		return
	}
	host, port, err := net.SplitHostPort(v.text)
	if err != nil {
		hint := "like vllm.ns.svc:8000"
		if validHost(v.text) {
			hint = "write " + v.text + ":8000"
		}
		d.failShowing(v, redactURL(v.text), "want host:port", hint)
		return
	}
	if _, err := netip.ParseAddr(host); err == nil {
		d.fail(v, "is an address, not a name", "write endpoints: [http://"+net.JoinHostPort(host, port)+"]")
		return
	}
	if !validHost(host) {
		d.failShowing(v, redactURL(v.text), "the host is not a name", "like vllm.ns.svc:8000")
		return
	}
	if rule := portRule(port, 1); rule != "" {
		d.fail(v, rule, "vLLM listens on 8000 unless told otherwise")
		return
	}
	*dst = strings.ToLower(strings.TrimSuffix(host, ".")) + ":" + strings.TrimLeft(port, "0")
}

// redactURL quotes a URL without what may be a secret in it: the user part and everything behind a question mark.
func redactURL(raw string) string {
	if holdsSecret(raw) {
		return ""
	}
	if i := strings.LastIndex(raw, "@"); i >= 0 {
		head := ""
		if j := strings.Index(raw, "://"); j >= 0 && j < i {
			head = raw[:j+3]
		}
		raw = head + hidden + raw[i:]
	}
	if i := strings.IndexByte(raw, '?'); i >= 0 {
		raw = raw[:i+1] + hidden
	}
	return quote(raw)
}
