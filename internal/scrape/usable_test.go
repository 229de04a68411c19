package scrape

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/pool"
)

// TestWhatCountsAsModelServer: any one page, or a wish for a key, is enough; a server that has none of them is not usable.
func TestWhatCountsAsModelServer(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	none := status(http.StatusNotFound)
	html := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }
	for _, c := range []struct {
		name                    string
		metrics, health, models http.HandlerFunc
		ready                   bool
		refuted                 bool
	}{
		{"everything", engine, engine, engine, true, false},
		{"no metrics page", none, engine, engine, true, false},
		{"no health page", engine, none, engine, true, false},
		{"models want a key", engine, engine, status(401), true, false},
		{"nothing but a model list", none, none, engine, true, false},
		{"nothing but a model list, and that wants a key", none, none, status(401), true, false},
		{"nothing but health", none, engine, none, true, false},
		{"nothing but metrics", engine, none, none, true, false},
		{"metrics are switched off, health is forbidden", status(501), status(403), none, true, false},
		{"a server that has its own pages", none, none, none, false, true},
		{"a server that redirects", status(302), status(302), status(302), false, true},
		{"a server of pages", html, none, html, false, true},
		{"a server that cannot do what it is asked", status(400), status(400), status(400), false, true},
		{"one that is busy and has no health page", status(429), none, status(503), false, false},
	} {
		n := newNetwork()
		n.serve("a:8000", func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/metrics"):
				c.metrics(w, r)
			case r.URL.Path == "/health":
				c.health(w, r)
			case r.URL.Path == "/v1/models":
				c.models(w, r)
			default:
				http.NotFound(w, r)
			}
		})
		run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, 5*time.Second, func(p *pool.Pool) {
			st := p.Status()
			e := st.Endpoints[0]
			if st.Ready != c.ready || e.NoModelServer != c.refuted || (e.State == "ready") != c.ready {
				t.Errorf("%s: ready %v, no model server %v, state %s; want %v, %v", c.name, st.Ready, e.NoModelServer, e.State, c.ready, c.refuted)
			}
		})
	}
}

// TestModelServerTakesThePort: what was another server becomes usable within seconds when a model server takes its place.
func TestModelServerTakesThePort(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", http.NotFound)
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, 30*time.Second, func(p *pool.Pool) {
		if p.Status().Ready {
			t.Error("a server of nothing is usable")
		}
		n.serve("a:8000", engine)
		time.Sleep(2 * time.Second)
		if !p.Status().Ready {
			t.Error("not usable 2 s after a model server took the port")
		}
		n.serve("a:8000", http.NotFound)
		time.Sleep(20 * time.Second)
		if e := p.Status().Endpoints[0]; !e.NoModelServer {
			t.Errorf("20 s after another server took the port again: %+v", e)
		}
	})
}

// TestErrorsNameThePageOnce: the address and the path that was asked, and no other.
func TestErrorsNameThePageOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"refused", nil, "scraping http://a:8000/metrics: dialing a:8000: connection refused"},
		{"no such page", http.NotFound, "scraping http://a:8000/metrics: status 404; /prometheus/metrics: status 404"},
		{"key", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) },
			"scraping http://a:8000/metrics: status 401 (check api_key_file of the pool)"},
		{"broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "scraping http://a:8000/metrics: status 500"},
	} {
		n := newNetwork()
		if c.serve != nil {
			n.serve("a:8000", c.serve)
		}
		for _, after := range []time.Duration{10 * time.Millisecond, 3 * time.Second} {
			run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, after, func(p *pool.Pool) {
				if got := p.Status().Endpoints[0].ReportError; got != c.want {
					t.Errorf("%s after %v: %q, want %q", c.name, after, got, c.want)
				}
			})
		}
		if c.serve == nil && n.count("a:8000/prometheus/metrics") > 0 {
			t.Error("a server that cannot be reached is asked for another page")
		}
	}
}

// TestListThatWantsAKey: the status says it, and a server is not asked twice a second for ever.
func TestListThatWantsAKey(t *testing.T) {
	n := newNetwork()
	n.serve("a:8000", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") && r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		engine(w, r)
	})
	run(t, n, pool.Config{Name: "chat"}, []string{"a:8000"}, time.Minute, func(p *pool.Pool) {
		e := p.Status().Endpoints[0]
		if !e.WantsKey || e.ModelsError != "reading http://a:8000/v1/models: status 401 (check api_key_file of the pool)" {
			t.Errorf("wants a key: %v, error %q", e.WantsKey, e.ModelsError)
		}
		if got := n.count("a:8000/v1/models"); got > 15 {
			t.Errorf("asked %d times in a minute", got)
		}
		p.SetConfig(pool.Config{Name: "chat", APIKey: "secret"})
		time.Sleep(15 * time.Second)
		if e := p.Status().Endpoints[0]; e.WantsKey || e.ModelsError != "" || len(e.Models) != 2 {
			t.Errorf("with the key: %+v", e)
		}
	})
}
