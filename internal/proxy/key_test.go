package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"pointsman.dev/pointsman/internal/pool"
)

// A pool's key is known when the pool is, which is after the client's headers were made fit for an endpoint.
func TestPoolKeyReachesEndpoint(t *testing.T) {
	got := make(chan http.Header, 2)
	ep := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		got <- r.Header.Clone()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[]}`)
	}))
	defer ep.Close()
	r := newRig(t, []string{ep.URL})
	r.pool.SetConfig(pool.Config{Name: "p", APIKey: "pools"})
	for _, header := range [][]string{nil, {"Authorization", "Bearer clients", "X-Api-Key", "clients"}} {
		res := r.post("/v1/chat/completions", `{"model":"m","messages":[]}`, header...)
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		h := <-got
		if v := h.Values("Authorization"); len(v) != 1 || v[0] != "Bearer pools" || h.Get("X-Api-Key") != "" {
			t.Errorf("client sent %q: Authorization %q, X-Api-Key %q", header, v, h.Get("X-Api-Key"))
		}
	}
}
