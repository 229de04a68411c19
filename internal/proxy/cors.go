package proxy

import (
	"net/http"
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// CORS says which pages may use the API from a browser. Without it, preflights and the headers of answers are the endpoints'
// own.
type CORS struct {
	Origins []string // as browsers send them, scheme://host[:port]; "*" alone for every page
}

const (
	headerOrigin      = "Origin"
	headerAskedMethod = "Access-Control-Request-Method"
	corsPrefix        = "Access-Control-"
	preflightAge      = "7200" // seconds; browsers cap it at about that
)

// exposed are the headers of answers that a page may read beside the few that every page may.
const exposed = headerRequestID + ", " + headerReason + ", " + headerLimit + ", " + headerNoRetry + ", Retry-After"

// allows reports whether a page of origin may use the API.
func (c *CORS) allows(origin string) bool {
	return slices.Contains(c.Origins, "*") || slices.Contains(c.Origins, origin)
}

// isPreflight reports whether r is a browser's question and no request.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get(headerOrigin) != "" && r.Header.Get(headerAskedMethod) != ""
}

// share adds to the answer's headers that the page which asked may read it.
func (x *exchange) share() {
	c := x.p.cfg.CORS
	if c == nil {
		return
	}
	h := x.w.Header()
	h["Vary"] = []string{headerOrigin} // the endpoint's own are added to it
	origin := x.in.Header.Get(headerOrigin)
	if origin == "" || !c.allows(origin) {
		return
	}
	h["Access-Control-Allow-Origin"] = []string{origin}
	h["Access-Control-Expose-Headers"] = []string{exposed}
}

// preflight answers a browser's question, or finds where to pass it on. It returns false when it was answered.
func (x *exchange) preflight() bool {
	asked := x.in.Header.Get(headerAskedMethod)
	api, e := llmapi.Lookup(asked, x.in.URL.EscapedPath())
	x.API = api
	x.Rec.Path = api.Path
	if e != nil {
		x.refuse(e)
		return false
	}
	if c := x.p.cfg.CORS; c == nil {
		x.API.Kind, x.API.Body = llmapi.Preflight, llmapi.NoBody
		for _, p := range x.p.cfg.Directory.Pools() {
			x.Target = append(x.Target, pool.Choice{Pool: p})
		}
		return true
	}
	h := x.w.Header()
	if h.Get("Access-Control-Allow-Origin") != "" {
		h["Access-Control-Allow-Methods"] = []string{strings.ToUpper(asked)}
		if names := x.in.Header.Get("Access-Control-Request-Headers"); names != "" {
			h["Access-Control-Allow-Headers"] = []string{names}
		}
		h["Access-Control-Max-Age"] = []string{preflightAge}
	}
	h["Vary"] = []string{headerOrigin + ", " + headerAskedMethod + ", Access-Control-Request-Headers"}
	x.w.WriteHeader(http.StatusNoContent)
	x.Outcome, x.Rec.Status = telemetry.OutcomeOK, http.StatusNoContent
	return false
}

// unshare takes the endpoint's own word on pages away where ours holds.
func (x *exchange) unshare(h http.Header) {
	if x.p.cfg.CORS == nil {
		return
	}
	for name := range h {
		if strings.HasPrefix(name, corsPrefix) {
			delete(h, name)
		}
	}
}
