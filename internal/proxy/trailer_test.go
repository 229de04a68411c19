package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// TestTrailers: what an endpoint sends behind its answer passes, save what clients are not to see, and so do the hints that it
// sends ahead.
func TestTrailers(t *testing.T) {
	var name string
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["Link"] = []string{"</x>; rel=preload"}
		h.Set("X-Served-By", name)
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("X-Served-By")
		h.Set("Trailer", "X-Checksum, Endpoint-Load-Metrics")
		answerStream(w, delta("a"), finishStop)
		h.Set("X-Checksum", "7")
		h.Set("Endpoint-Load-Metrics", "JSON {}")
		h.Set(http.TrailerPrefix+"X-Where", "pod at "+name)
		h.Set(http.TrailerPrefix+"X-Late", "8")
		h.Set(http.TrailerPrefix+"X-Pointsman-Reason", "forged")
	})
	name = ep.name
	r := newRig(t, []string{ep.URL})
	for proto, client := range r.clients() {
		req, err := http.NewRequest("POST", r.server.URL+chat, strings.NewReader(streamBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("TE", "trailers")
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := read(res); err != nil || body != delta("a")+finishStop {
			t.Errorf("%s: %v: %s", proto, err, body)
		}
		want := http.Header{"X-Checksum": {"7"}, "X-Late": {"8"}}
		sameHeader(t, res.Trailer, want)
	}
	r.idle()
}
