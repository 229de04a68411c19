package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// old is a request of an HTTP/1.0 client, which nginx is unless it is told otherwise.
func old(body string) string {
	return strings.Replace(rawPost(body), "HTTP/1.1", "HTTP/1.0", 1)
}

// TestHTTP10: an answer of unknown length has no chunks and ends with the connection, events leave at once, and an answer
// that broke off ends with a reset: a plain close would be its good end.
func TestHTTP10(t *testing.T) {
	more := make(chan struct{})
	cut := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush() // no length
		_, _ = io.WriteString(w, okJSON[:50])
		_ = http.NewResponseController(w).Flush()
		<-more
		reset(w)
	}
	for _, c := range []struct {
		name, body string
		how        CutStream
		handle     http.HandlerFunc
		first      string // before more is said
		rest       string // what it must hold
		broken     bool
	}{
		{"whole answer", chatBody, CutBoth, answerOK, okJSON, "", false},
		{"stream", streamBody, CutBoth, func(w http.ResponseWriter, r *http.Request) {
			answerStream(w, delta("a"))
			<-more
			answerStream(w, finishStop, doneEvent)
		}, delta("a"), finishStop + doneEvent, false},
		{"answer cut short", chatBody, CutBoth, cut, okJSON[:50], "", true},
		{"stream cut short", streamBody, CutBoth, func(w http.ResponseWriter, r *http.Request) {
			answerStream(w, delta("a"))
			<-more
			reset(w)
		}, delta("a"), `"upstream_reset"`, true},
		{"stream cut short, told by its event alone", streamBody, CutErrorEvent, func(w http.ResponseWriter, r *http.Request) {
			answerStream(w, delta("a"))
			<-more
			reset(w)
		}, delta("a"), `"upstream_reset"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			served := make(chan struct{})
			ep := newEndpoint(t, func(w http.ResponseWriter, q *http.Request) {
				defer close(served)
				c.handle(w, q)
			})
			r := newRig(t, []string{ep.URL}, func(cfg *Config) { cfg.CutStream = c.how })
			_, br := r.raw(old(c.body))
			res, err := http.ReadResponse(br, nil)
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("%v, %v", res, err)
			}
			if len(res.TransferEncoding) > 0 || !res.Close || res.Header.Get("x-pointsman-limit") != "3600" {
				t.Errorf("coding %v, close %v, %v", res.TransferEncoding, res.Close, res.Header)
			}
			first := make([]byte, len(c.first))
			if _, err = io.ReadFull(res.Body, first); err != nil || string(first) != c.first {
				t.Fatalf("%q, %v", first, err)
			}
			select {
			case more <- struct{}{}:
			case <-served: // nobody waits for it
			}
			rest, err := io.ReadAll(res.Body)
			if (err != nil) != c.broken || !strings.Contains(string(rest), c.rest) || c.rest == "" && len(rest) > 0 {
				t.Errorf("then %q, %v", rest, err)
			}
			r.record()
			r.idle()
		})
	}
}
