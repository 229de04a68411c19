package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// TestCORS: pages that are allowed may read answers, errors and streams; the endpoint's own word on pages is replaced, and
// preflights are answered here.
func TestCORS(t *testing.T) {
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Vary", "Accept")
		answerOK(w, r)
	})
	ask := func(r *rig, method, path, origin string, header ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(method, r.server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", origin)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	one := newRig(t, []string{ep.URL}, func(c *Config) { c.CORS = &CORS{Origins: []string{"https://app.example"}} })
	all := newRig(t, []string{ep.URL}, func(c *Config) { c.CORS = &CORS{Origins: []string{"*"}} })
	for _, c := range []struct {
		name   string
		rig    *rig
		origin string
		want   string
	}{
		{"allowed", one, "https://app.example", "https://app.example"},
		{"another page", one, "https://evil.example", ""},
		{"another scheme", one, "http://app.example", ""},
		{"every page", all, "https://any.example", "https://any.example"},
	} {
		res := c.rig.post(chat, chatBody, "Origin", c.origin)
		_, _ = read(res)
		if got := res.Header.Get("Access-Control-Allow-Origin"); res.StatusCode != 200 || got != c.want || res.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: an answer: status %d, origin %q", c.name, res.StatusCode, got)
		}
		if v := res.Header.Values("Vary"); len(v) != 2 {
			t.Errorf("%s: vary %q", c.name, v)
		}
		res = c.rig.post(chat, "{", "Origin", c.origin)
		_, _ = read(res)
		if got := res.Header.Get("Access-Control-Allow-Origin"); res.StatusCode != 400 || got != c.want {
			t.Errorf("%s: an error: status %d, origin %q", c.name, res.StatusCode, got)
		}
		before := ep.served.Load()
		res = ask(c.rig, "OPTIONS", chat, c.origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type")
		h := res.Header
		if res.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != c.want || (h.Get("Access-Control-Allow-Methods") == "POST") != (c.want != "") ||
			(h.Get("Access-Control-Allow-Headers") == "authorization,content-type") != (c.want != "") {
			t.Errorf("%s: a preflight: status %d, %v", c.name, res.StatusCode, h)
		}
		if ep.served.Load() != before {
			t.Errorf("%s: a preflight reached the endpoint", c.name)
		}
	}
	if res := ask(one, "OPTIONS", "/pause", "https://app.example", "Access-Control-Request-Method", "POST"); res.StatusCode != 404 {
		t.Errorf("a preflight of a path that is not there: status %d", res.StatusCode)
	}
	if res := ask(one, "GET", "/v1/models", ""); res.Header.Get("Vary") != "Origin" {
		t.Errorf("vary %q: a cache would give this answer to a page", res.Header.Get("Vary"))
	}
}

// TestCORSEverywhere: a page may read every kind of answer of ours, streams and errors among them, and the headers by which it
// finds out more.
func TestCORSEverywhere(t *testing.T) {
	ep := newEndpoint(t, stream(delta("a"), finishStop, doneEvent))
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.CORS, c.MaxBody = &CORS{Origins: []string{"https://app.example"}}, 1<<10 })
	down := newRig(t, []string{closedPort(t)}, func(c *Config) { c.CORS = &CORS{Origins: []string{"*"}} })
	for _, c := range []struct {
		rig        *rig
		path, body string
		status     int
	}{
		{r, chat, streamBody, 200}, {r, chat, strings.Repeat(" ", 2<<10), 413}, {r, "/v1/nothing", "{}", 404}, {r, chat, `{"model":"n","messages":[]}`, 404}, {r, "/v1/models", "", 405}, {down, chat, chatBody, 503},
	} {
		res := c.rig.post(c.path, c.body, "Origin", "https://app.example")
		_, _ = read(res)
		h := res.Header
		if res.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Vary") != "Origin" || h.Get("X-Pointsman-Limit") != "3600" {
			t.Errorf("%s: status %d, %v", c.path, res.StatusCode, h)
		}
		for _, name := range []string{"X-Pointsman-Request-Id", "X-Pointsman-Reason", "Retry-After", "X-Should-Retry", "X-Pointsman-Limit"} {
			if !strings.Contains(h.Get("Access-Control-Expose-Headers"), name) {
				t.Errorf("%s: %s is not exposed", c.path, name)
			}
		}
	}
}

// TestPreflightPasses: without cors, preflights and the headers of answers are the endpoint's.
func TestPreflightPasses(t *testing.T) {
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-Saw", r.Method+" "+r.URL.Path+" "+r.Header.Get("Access-Control-Request-Method"))
		w.Header().Set("Content-Type", "text/plain")
		w.Write([]byte("OK"))
	})
	r := newRig(t, []string{ep.URL})
	for path, want := range map[string]int{chat: 200, "/v1/messages": 200, "/sleep": 404, "/v1/chat/completions/": 404} {
		req, err := http.NewRequest("OPTIONS", r.server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", "https://app.example")
		req.Header.Set("Access-Control-Request-Method", "POST")
		res, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := read(res)
		if res.StatusCode != want {
			t.Errorf("%s: status %d: %s", path, res.StatusCode, body)
		}
		if want == 200 && (body != "OK" || res.Header.Get("Access-Control-Allow-Origin") != "*" || res.Header.Get("X-Saw") != "OPTIONS "+path+" POST") {
			t.Errorf("%s: %q %v", path, body, res.Header)
		}
	}
	if ep.served.Load() != 2 {
		t.Errorf("the endpoint saw %d requests", ep.served.Load())
	}
	r.idle()
}
