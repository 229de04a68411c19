package pool

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

// Pages that could not be asked for, because the gateway had no descriptor for a connection, say nothing of the endpoint.
func TestStarvedProbesCountForNothing(t *testing.T) {
	p, _ := testPool(t, 1, Config{Name: "p"})
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	for range 10 {
		p.ReportFailed(addr(0), fmt.Errorf("scraping http://a:1/metrics: %w", dial))
		p.HealthProbe(addr(0), 0, fmt.Errorf("asking http://a:1/health: %w", dial))
	}
	if e := p.Status().Endpoints[0]; e.State != "ready" || e.Cause != "" || e.ReportError == "" {
		t.Errorf("%s, cause %q, report error %q", e.State, e.Cause, e.ReportError)
	}
}

func TestStarved(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{syscall.ECONNREFUSED, false},
		{os.ErrDeadlineExceeded, false},
		{os.NewSyscallError("socket", syscall.EMFILE), true},
		{fmt.Errorf("wrapped: %w", os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)), true},
		{&net.DNSError{Err: "no such host"}, false},
		{&net.DNSError{Err: "dial udp 10.0.0.10:53: socket: too many open files"}, true},
	} {
		if got := Starved(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
