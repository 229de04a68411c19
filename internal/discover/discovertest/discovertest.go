// Package discovertest is the suite that every discover.Discoverer passes: what discover.Discoverer promises, as tests.
//
// It is for tests only. Each case runs in a testing/synctest bubble, so that minutes pass at once and a goroutine that
// Run leaves behind fails the test.
package discovertest

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/discover"
)

// Source is one source of endpoints with its discoverer, freshly made for one case.
type Source struct {
	// New returns the discoverer under test. It is called once, after the source was set.
	New func() discover.Discoverer
	// Set makes the source say that exactly these endpoints exist, by URL; nil if it can only be set once, by Want.
	Set func(urls []string)
	// Break makes the source unreadable until the next Set; nil if it cannot break.
	Break func()
	// Want is what a source without Set says.
	Want []string
	// Within is how soon a change must be told.
	Within time.Duration
}

// Run runs the suite. open makes a Source for one case and is called inside the bubble.
func Run(t *testing.T, open func(t *testing.T) Source) {
	cases := []struct {
		name string
		need func(Source) bool
		run  func(*testing.T, *probe)
	}{
		{"first set at once and once", nil, firstSet},
		{"ends while nobody receives", nil, endsUnreceived},
		{"ends before it starts", nil, endsAtOnce},
		{"channel stays open", nil, staysOpen},
		{"receiver owns the set", nil, ownsSet},
		{"changes are full sets", settable, fullSets},
		{"equal sets are not repeated", settable, noRepeats},
		{"a broken source keeps the last set", breakable, keepsLast},
		{"a source that starts broken sends nothing", breakable, startsBroken},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t)
				if c.need != nil && !c.need(s) {
					t.Skip("the source cannot do that")
				}
				p := &probe{Source: s, t: t, up: make(chan []discover.Target), ended: make(chan struct{})}
				p.ctx, p.cancel = context.WithCancel(t.Context())
				c.run(t, p)
				p.cancel()
				synctest.Wait()
			})
		})
	}
}

func settable(s Source) bool  { return s.Set != nil }
func breakable(s Source) bool { return s.Set != nil && s.Break != nil }

// probe drives one discoverer.
type probe struct {
	Source
	t      *testing.T
	ctx    context.Context
	cancel context.CancelFunc
	made   discover.Discoverer
	up     chan []discover.Target
	ended  chan struct{}
}

// start sets the source, if it can be set, and runs the discoverer.
func (p *probe) start(urls ...string) {
	if p.Set != nil {
		p.Set(urls)
	}
	p.run()
}

func (p *probe) run() {
	p.made = p.New()
	go func() { p.made.Run(p.ctx, p.up); close(p.ended) }()
}

// want receives one set within the given time and compares it.
func (p *probe) want(within time.Duration, urls ...string) []discover.Target {
	p.t.Helper()
	select {
	case set, open := <-p.up:
		if !open {
			p.t.Fatal("the channel was closed")
		}
		if got := URLs(set); !slices.Equal(got, urls) {
			p.t.Fatalf("got the set %v, want %v", got, urls)
		}
		return set
	case <-time.After(within):
		p.t.Fatalf("no set within %v, want %v", within, urls)
		return nil
	}
}

// quiet demands that nothing is sent for so long.
func (p *probe) quiet(d time.Duration) {
	p.t.Helper()
	select {
	case set := <-p.up:
		p.t.Fatalf("got the set %v, want nothing", URLs(set))
	case <-time.After(d):
	}
}

// broken demands that the discoverer knows whether its source is broken.
func (p *probe) broken(want bool) {
	p.t.Helper()
	if why := p.made.Broken(); (why != "") != want {
		p.t.Fatalf("the source is broken: %v, and the discoverer says %q", want, why)
	}
}

// returned demands that Run has returned.
func (p *probe) returned() {
	p.t.Helper()
	p.cancel()
	synctest.Wait()
	select {
	case <-p.ended:
	default:
		p.t.Fatal("Run did not return when its context ended")
	}
}

// The endpoints of the cases: addresses, so that a DNS source can say them, in the order that every source keeps.
func a() string { return "http://10.0.0.1:8000" }
func b() string { return "http://10.0.0.2:8000" }
func c() string { return "http://10.0.0.3:8000" }

// initial is what the source says after start(a, b).
func (p *probe) initial() []string {
	if p.Set == nil {
		return p.Want
	}
	return []string{a(), b()}
}

func firstSet(t *testing.T, p *probe) {
	p.start(a(), b())
	p.want(100*time.Millisecond, p.initial()...)
	p.quiet(10 * time.Minute)
	select {
	case <-p.ended:
		t.Fatal("Run returned before its context ended")
	default:
	}
}

func endsUnreceived(t *testing.T, p *probe) {
	p.start(a(), b())
	time.Sleep(time.Minute)
	p.returned()
}

func endsAtOnce(t *testing.T, p *probe) {
	p.cancel()
	p.start(a(), b())
	p.returned()
}

func staysOpen(t *testing.T, p *probe) {
	p.start(a(), b())
	p.want(100*time.Millisecond, p.initial()...)
	p.returned()
	select {
	case _, open := <-p.up:
		if !open {
			t.Fatal("Run closed the channel")
		}
		t.Fatal("Run sent a set after its context ended")
	default:
	}
}

func ownsSet(t *testing.T, p *probe) {
	p.start(a(), b())
	clear(p.want(100*time.Millisecond, p.initial()...))
	p.quiet(time.Minute)
	p.returned()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go p.made.Run(ctx, p.up) // a discoverer may be run again
	p.want(100*time.Millisecond, p.initial()...)
	p.quiet(time.Minute)
}

func fullSets(t *testing.T, p *probe) {
	p.start(a())
	p.want(100*time.Millisecond, a())
	for _, set := range [][]string{{a(), b()}, {b()}, {b(), c()}, {a(), b(), c()}, {c()}} {
		p.Set(set)
		p.want(p.Within, set...)
	}
	p.quiet(time.Minute)
}

func noRepeats(t *testing.T, p *probe) {
	p.start(a(), b())
	p.want(100*time.Millisecond, a(), b())
	for range 3 {
		p.Set([]string{a(), b()})
		p.quiet(time.Minute)
	}
	p.Set([]string{a(), b(), a()}) // said twice is there once
	p.quiet(time.Minute)
}

func keepsLast(t *testing.T, p *probe) {
	p.start(a(), b())
	p.want(100*time.Millisecond, a(), b())
	p.broken(false)
	p.Break()
	p.quiet(10 * time.Minute)
	p.broken(true)
	p.Set([]string{a(), b()})
	p.quiet(time.Minute)
	p.broken(false)
	p.Break()
	p.quiet(time.Minute)
	p.Set([]string{c()})
	p.want(p.Within, c())
}

func startsBroken(t *testing.T, p *probe) {
	p.Set([]string{a()})
	p.Break()
	p.run()
	p.quiet(time.Minute)
	p.broken(true)
	p.Set([]string{a()})
	p.want(p.Within, a())
	p.quiet(time.Minute)
	p.broken(false)
}

// URLs returns the URLs of a set.
func URLs(set []discover.Target) []string {
	urls := make([]string, len(set))
	for i, t := range set {
		urls[i] = t.URL
	}
	return urls
}
