package dash

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/route"
)

func get(path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func TestFiles(t *testing.T) {
	for path, kind := range map[string]string{"/": "text/html", "/index.html": "text/html", "/app.js": "text/javascript", "/style.css": "text/css", "/favicon.svg": "image/svg+xml"} {
		w := get(path)
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || w.Body.Len() == 0 {
			t.Errorf("%s: %d, %s, %d bytes", path, w.Code, w.Header().Get("Content-Type"), w.Body.Len())
		}
		if again := get(path, "If-None-Match", w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
			t.Errorf("%s again: %d with %d bytes, want 304 without a body", path, again.Code, again.Body.Len())
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
			t.Errorf("%s: policy %q", path, csp)
		}
	}
	for _, path := range []string{"/static/", "/dash.go", "/../dash.go", "/app.js/"} {
		if w := get(path); w.Code != 404 {
			t.Errorf("%s: %d, want 404", path, w.Code)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("static/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSelfContained: the page must work without the internet and under its own policy.
func TestSelfContained(t *testing.T) {
	for _, name := range []string{"index.html", "style.css", "app.js", "favicon.svg"} {
		text := strings.ReplaceAll(read(t, name), "http://www.w3.org/2000/svg", "")
		if m := regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]{2,}|@import|url\(`).FindString(text); m != "" {
			t.Errorf("%s refers to %s", name, m)
		}
	}
	html := read(t, "index.html")
	if m := regexp.MustCompile(`<script(>| [^>]*[^"]>)|\son[a-z]+=|\sstyle=`).FindString(html); m != "" {
		t.Errorf("index.html has inline code or style (%q), which the policy forbids", m)
	}
	if js := read(t, "app.js"); strings.Contains(js, "innerHTML") || strings.Contains(js, "eval(") {
		t.Error("app.js builds HTML from text: names from outside could become markup")
	}
}

// TestIDs: every element that the script looks for is on the page.
func TestIDs(t *testing.T) {
	html := read(t, "index.html")
	for _, m := range regexp.MustCompile(`\$\("([a-z-]+)"\)`).FindAllStringSubmatch(read(t, "app.js"), -1) {
		if !strings.Contains(html, `id="`+m[1]+`"`) {
			t.Errorf("app.js looks for #%s, which is not on the page", m[1])
		}
	}
}

// TestWords: the page explains every state, reason and gate that the gateway can show.
func TestWords(t *testing.T) {
	js := read(t, "app.js")
	var words []string
	for i := range health.NumStates {
		words = append(words, health.State(i).String())
	}
	for r := route.ReasonPrefix; r <= route.ReasonOnlyOne; r++ {
		words = append(words, r.String())
	}
	for i := range route.NumGates {
		words = append(words, route.GateName(i))
	}
	s := route.Snapshot{Params: route.DefaultParams(), Endpoints: make([]route.Endpoint, 1)}
	for _, term := range route.Explain(&s, &route.Request{PromptTokens: 1}, nil, nil, 0).Candidates[0].Terms {
		words = append(words, term.Name)
	}
	for _, w := range words {
		if !regexp.MustCompile(`\b` + w + `: `).MatchString(js) {
			t.Errorf("app.js does not explain %q", w)
		}
	}
}
