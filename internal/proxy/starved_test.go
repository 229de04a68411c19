package proxy

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/pool"
)

// A gateway that has no descriptor, port or buffer left for a connection must not hold that against its endpoints: all of them would
// be ejected at the moment of the highest load.
func TestOwnShortageEjectsNobody(t *testing.T) {
	refused := func(e syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", e)}
	}
	for name, c := range map[string]struct {
		err   error
		state string
	}{
		"descriptors": {refused(syscall.EMFILE), "ready"},
		"of all":      {refused(syscall.ENFILE), "ready"},
		"buffers":     {refused(syscall.ENOBUFS), "ready"},
		"ports":       {refused(syscall.EADDRNOTAVAIL), "ready"},
		"in a lookup": {&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Name: "vllm", Err: "dial udp 10.0.0.10:53: socket: too many open files"}}, "ready"},
		"refused":     {refused(syscall.ECONNREFUSED), "ejected"},
	} {
		t.Run(name, func(t *testing.T) {
			urls := []string{newEndpoint(t, answerOK).URL, newEndpoint(t, answerOK).URL}
			var short atomic.Bool
			short.Store(true)
			r := newRig(t, urls, func(cfg *Config) {
				cfg.Transport = func(string) http.RoundTripper {
					return NewTransport(TransportConfig{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
						if short.Load() {
							return nil, c.err
						}
						return (&net.Dialer{}).DialContext(ctx, network, addr)
					}})
				}
			})
			for _, u := range urls {
				r.pool.Report(u, pool.EmptyReport())
			}
			res := r.post(chat, chatBody)
			if text, err := read(res); res.StatusCode != 503 || err != nil || res.Header.Get("Retry-After") == "" {
				t.Errorf("status %d %v: %s, %v", res.StatusCode, res.Header, text, err)
			}
			if rec := r.record(); rec["attempts"] != "2" || rec["outcome"] != "no_endpoint" {
				t.Errorf("record %v", rec)
			}
			for _, e := range r.pool.Status().Endpoints {
				if e.State != c.state {
					t.Errorf("%s is %s, want %s", e.Name, e.State, c.state)
				}
			}
			short.Store(false)
			if res := r.post(chat, chatBody); res.StatusCode != 200 {
				t.Errorf("afterwards: status %d", res.StatusCode)
			}
			r.idle()
		})
	}
}

// What looks like a shortage and is there from the beginning is an address that cannot be reached.
func TestNeverHeardIsNotExcused(t *testing.T) {
	r := newRig(t, []string{"http://127.0.0.1:1"}, func(cfg *Config) {
		cfg.Transport = func(string) http.RoundTripper {
			return NewTransport(TransportConfig{Dial: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}
			}})
		}
	})
	r.pool.SetTargets(nil)
	r.pool.SetTargets([]discover.Target{{URL: "http://127.0.0.1:1"}})
	if res := r.post(chat, chatBody); res.StatusCode != 503 {
		t.Errorf("status %d", res.StatusCode)
	}
	if got := r.pool.Status().Endpoints[0]; got.State == "ready" || got.State == "unknown" || got.Cause == "" {
		t.Errorf("%s is %s, cause %q", got.Name, got.State, got.Cause)
	}
	r.idle()
}
