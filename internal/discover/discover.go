// Package discover finds out which endpoints a pool has: from a fixed list, from a file, or from DNS.
//
// It does not know what an endpoint serves, whether it is up, or what a pool is; it says which addresses exist at the
// moment and says so again when that changes. Other sources write a file.
//
// Each Discoverer is run by one goroutine that its caller owns and holds no state that others read. discovertest is the
// suite that every implementation passes.
package discover

import (
	"context"
	"slices"
)

// Target is one endpoint that exists. Targets are compared with ==.
type Target struct {
	// URL is scheme://host:port in canonical form: lower case, the port written out, no path.
	URL string
}

// Discoverer tells a channel which endpoints exist.
//
// Run sends the full set each time, never a difference: the first one as soon as it is known, then one per change, and
// never two equal ones in a row. Each set is a fresh slice that belongs to the receiver, without duplicates and in an
// order that stays the same while the set does. A source that breaks is not an empty source: nothing is sent and the
// receiver keeps what it has. Run returns when ctx ends, also while nobody receives, and does not close up. It may be called
// again after it returned, and not while it runs.
type Discoverer interface {
	Run(ctx context.Context, up chan<- []Target)
}

// Targets makes targets of canonical URLs, dropping duplicates.
func Targets(urls []string) []Target {
	targets := make([]Target, 0, len(urls))
	for _, u := range urls {
		if t := (Target{URL: u}); !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	return targets
}

// Static is a set that never changes.
type Static []Target

// Run implements Discoverer.
func (s Static) Run(ctx context.Context, up chan<- []Target) {
	send(ctx, up, s)
	<-ctx.Done()
}

// send gives the receiver its own copy, unless ctx ends first.
func send(ctx context.Context, up chan<- []Target, set []Target) bool {
	select {
	case up <- append([]Target{}, set...):
		return true
	case <-ctx.Done():
		return false
	}
}
