package discover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"
)

const (
	// resolveEvery is how often a name is looked up. The records' time to live is not visible through the system's
	// resolver; 5 s is what cluster DNS answers with.
	resolveEvery = 5 * time.Second
	// retryEvery is how often before there is any set, when nothing can be served anyway.
	retryEvery = time.Second
	// resolveLimit bounds one look-up.
	resolveLimit = 4 * time.Second
)

// Resolver looks up addresses; *net.Resolver is one.
type Resolver interface {
	// LookupNetIP returns the addresses of host. network is "ip": both families.
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// DNS is the endpoints that a name's A and AAAA records list, spoken to with http.
type DNS struct {
	Condition
	hostport string
	resolver Resolver
	log      *slog.Logger
}

// NewDNS returns the Discoverer of hostport ("vllm.ns.svc:8000"). Nothing is resolved before Run. A nil resolver is
// net.DefaultResolver.
func NewDNS(hostport string, resolver Resolver, log *slog.Logger) *DNS {
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	return &DNS{hostport: hostport, resolver: resolver, log: log}
}

// Run implements Discoverer. The set is in the order of the addresses, IPv4 first, whatever order the server answers in.
// A name without addresses is an error, not an empty set: a DNS server that has just started says the same.
func (d *DNS) Run(ctx context.Context, up chan<- []Target) {
	trouble := NewComplaint(d.log, &d.Condition, "dns", d.hostport)
	var set []Target
	for {
		next, err := d.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			trouble.Broken(err, len(set), time.Now())
		default:
			trouble.Whole(time.Now())
			if !slices.Equal(next, set) {
				if !send(ctx, up, next) {
					return
				}
				set = next
			}
		}
		wait := resolveEvery
		if set == nil {
			wait = retryEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// look resolves the name once.
func (d *DNS) look(ctx context.Context) ([]Target, error) {
	host, port, err := net.SplitHostPort(d.hostport)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", d.hostport, err)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	addrs, err := d.resolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no addresses")
	}
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", host, err)
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	urls := make([]string, len(addrs))
	for i, a := range addrs {
		u := url.URL{Scheme: "http", Host: net.JoinHostPort(a.String(), port)}
		urls[i] = u.String()
	}
	return Targets(urls), nil
}
