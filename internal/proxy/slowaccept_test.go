package proxy

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// failures closes third when so many requests have failed.
type failures struct {
	http.RoundTripper
	n     atomic.Int64
	third chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (f *failures) RoundTrip(q *http.Request) (*http.Response, error) {
	res, err := f.RoundTripper.RoundTrip(q)
	if err != nil && f.n.Add(1) == 3 {
		close(f.third)
	}
	return res, err
}

// A model server that is too busy to accept for longer than one attempt to connect takes is no dead one. While it shows otherwise that it
// lives, nobody who asks gets an error; of one that has been silent for long nobody waits.
func TestSlowToAccept(t *testing.T) {
	for name, c := range map[string]struct {
		reports bool
		status  int
	}{"alive": {true, 200}, "silent": {false, 503}} {
		t.Run(name, func(t *testing.T) {
			ln := loopback.Cramped(t)
			at := "http://" + ln.Addr().String()
			dials := &failures{third: make(chan struct{})}
			r := newRig(t, []string{at}, func(c *Config) {
				c.Transport = func(string) http.RoundTripper {
					dials.RoundTripper = NewTransport(TransportConfig{DialTimeout: 300 * time.Millisecond})
					return dials
				}
			})
			if c.reports {
				r.pool.Report(at, pool.EmptyReport())
			}
			s := &http.Server{Handler: http.HandlerFunc(answerOK), ErrorLog: quiet()}
			go func() { <-dials.third; _ = s.Serve(ln) }()
			t.Cleanup(func() { s.Close(); ln.Close() })
			res := r.post(chat, chatBody)
			text, err := read(res)
			if res.StatusCode != c.status || err != nil {
				t.Errorf("status %d %s, %v", res.StatusCode, text, err)
			}
			rec := r.record()
			if one := rec["attempts"] == "1" || rec["attempts"] == ""; one == c.reports {
				t.Errorf("attempts: %q", rec["attempts"])
			}
			r.idle()
		})
	}
}

// An endpoint that is alive and takes no connection at all holds a request until its limit, and no longer.
func TestNeverAccepts(t *testing.T) {
	ln := loopback.Cramped(t)
	t.Cleanup(func() { ln.Close() })
	at := "http://" + ln.Addr().String()
	r := newRig(t, []string{at}, func(c *Config) {
		c.Limit = 1200 * time.Millisecond
		c.Transport = func(string) http.RoundTripper {
			return NewTransport(TransportConfig{DialTimeout: 200 * time.Millisecond})
		}
	})
	r.pool.Report(at, pool.EmptyReport())
	res := r.post(chat, chatBody)
	text, _ := read(res)
	if res.StatusCode != 504 || res.Header.Get("x-should-retry") == "false" {
		t.Errorf("status %d %v: %s", res.StatusCode, res.Header, text)
	}
	r.idle()
}
