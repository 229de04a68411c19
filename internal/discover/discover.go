// Package discover finds out which endpoints a pool has: from a fixed list, from a file, or from DNS. Package
// discover/kube asks Kubernetes.
//
// It does not know what an endpoint serves, whether it is up, or what a pool is; it says which addresses exist at the
// moment and says so again when that changes. Other sources write a file.
//
// Each Discoverer is run by one goroutine that its caller owns; others read its Condition and nothing else. discovertest is
// the suite that every implementation passes.
package discover

import (
	"context"
	"slices"
)

// Target is one endpoint that exists. Targets are compared with ==.
type Target struct {
	// URL is scheme://host:port in canonical form: lower case, the port written out, no path.
	URL string
	// ID tells one life of the address from the next, like a pod's UID: an address whose ID changed is another endpoint,
	// which knows nothing of what the one before it was sent. "" says nothing.
	ID string
	// MetricsPort is where the model server's metrics page is, when it is not at URL's own port; 0 is there.
	MetricsPort int
	// Settings is what the source knows of how the model server was started.
	Settings Settings
}

// Settings is how a model server was started, as far as somebody beside it can tell. What the server says of itself goes
// before it. Numbers are of one data-parallel rank; 0 is unknown.
type Settings struct {
	MaxNumSeqs       int // sequences at once
	MaxBatchedTokens int // tokens computed in one step
	MaxModelLen      int // tokens of prompt and answer together
	PrefixCaching    Switch
}

// Switch is a setting that is on or off, or unknown.
type Switch uint8

// The values of a Switch.
const (
	Unsaid Switch = iota
	On
	Off
)

// Discoverer tells a channel which endpoints exist.
//
// Run sends the full set each time, never a difference: the first one as soon as it is known, then one per change, and
// never two equal ones in a row. Each set is a fresh slice that belongs to the receiver, without duplicates and in an
// order that stays the same while the set does. A source that breaks is not an empty source: nothing is sent and the
// receiver keeps what it has. Run returns when ctx ends, also while nobody receives, and does not close up. It may be called
// again after it returned, and not while it runs.
//
// Broken returns why the set may be out of date, "" while it is not. It may be called from any goroutine, at any time.
type Discoverer interface {
	Run(ctx context.Context, up chan<- []Target)
	Broken() string
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

// Broken implements Discoverer: a list cannot break.
func (s Static) Broken() string { return "" }

// send gives the receiver its own copy, unless ctx ends first.
func send(ctx context.Context, up chan<- []Target, set []Target) bool {
	select {
	case up <- append([]Target{}, set...):
		return true
	case <-ctx.Done():
		return false
	}
}
