package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// crowd is how many requests at once leave memory behind that is worth giving back: some 100 kB each.
	crowd = 100

	// crowdLook is how often giveBack looks. Two looks outlast the connections to endpoints that a crowd leaves unused.
	crowdLook = 4 * time.Second
)

// giveBack returns memory to the system when a crowd of requests has gone, until ctx ends. Go collects garbage when as much
// again has been allocated, or after two minutes; a gateway that has become quiet allocates next to nothing.
func (g *Gateway) giveBack(ctx context.Context) {
	tick := time.NewTicker(crowdLook)
	defer tick.Stop()
	var c crowdWatch
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n, _ := g.requestsInFlight(); c.gone(n) {
			runtime.GC() // what lies in pools is garbage at the second collection only
			debug.FreeOSMemory()
		}
	}
}

// crowdWatch sees crowds come and go.
type crowdWatch struct {
	peak int  // most requests in flight since the last crowd went
	low  bool // the last look found few
}

// gone takes the number of requests in flight and reports whether a crowd has gone: at two looks in a row there was no more
// than a quarter of it.
func (c *crowdWatch) gone(n int) bool {
	c.peak = max(c.peak, n)
	if c.peak < crowd || n > c.peak/4 {
		c.low = false
		return false
	}
	if !c.low {
		c.low = true
		return false
	}
	c.peak, c.low = n, false
	return true
}
