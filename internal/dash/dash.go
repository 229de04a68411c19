// Package dash is the dashboard: one page of static files, embedded in the binary. It needs no build step and
// asks nobody but the admin listener: it draws what /api/events says.
//
// It knows nothing of the gateway; package admin serves it and the data.
package dash

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strconv"
)

//go:embed static
var static embed.FS

// policy lets the page load its own files and talk to its own origin, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is one of the page's files, ready to be sent.
type file struct {
	body  []byte
	kind  string
	etag  string
	bytes string
}

// Handler serves the dashboard at / and its files beside it. Anything else is 404.
func Handler() http.Handler {
	files := map[string]file{
		"/":            load("static/index.html", "text/html; charset=utf-8"),
		"/style.css":   load("static/style.css", "text/css; charset=utf-8"),
		"/app.js":      load("static/app.js", "text/javascript; charset=utf-8"),
		"/favicon.svg": load("static/favicon.svg", "image/svg+xml"),
	}
	files["/index.html"] = files["/"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-cache") // asked again each time: a new binary shows its own page
		h.Set("ETag", f.etag)
		if r.Header.Get("If-None-Match") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		h.Set("Content-Type", f.kind)
		h.Set("Content-Length", f.bytes)
		if r.Method != http.MethodHead {
			// The browser went away: nobody is left to tell.
			_, _ = w.Write(f.body)
		}
	})
}

func load(name, kind string) file {
	body, err := fs.ReadFile(static, name)
	if err != nil {
		panic("dash: " + err.Error()) // the binary was built without its page
	}
	sum := sha256.Sum256(body)
	return file{body: body, kind: kind, etag: `"` + hex.EncodeToString(sum[:8]) + `"`, bytes: strconv.Itoa(len(body))}
}
