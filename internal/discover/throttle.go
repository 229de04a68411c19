package discover

import (
	"log/slog"
	"time"
)

// repeatAfter is how long a failure that goes on stays silent in the log.
const repeatAfter = time.Minute

// complaint logs a source that is broken: at once when it breaks, then once a minute with the number of the silent
// failures between, and once when it is whole again. The texts of two failures are not compared, since those of the
// resolver hold port numbers that change each time.
type complaint struct {
	log        *slog.Logger
	source     []any // attributes that name the source
	going      bool  // broken at the moment
	since      time.Time
	last       time.Time
	suppressed int
}

// broken records one failure.
func (c *complaint) broken(err error, endpoints int, now time.Time) {
	if c.going && now.Sub(c.last) < repeatAfter {
		c.suppressed++
		return
	}
	if !c.going {
		c.since = now
	}
	c.log.Warn("endpoints source broken, the last good set stays", append(c.source[:len(c.source):len(c.source)],
		"err", err.Error(), "endpoints", endpoints, "suppressed", c.suppressed)...)
	c.going, c.last, c.suppressed = true, now, 0
}

// whole records a success.
func (c *complaint) whole(now time.Time) {
	if !c.going {
		return
	}
	c.log.Info("endpoints source whole again", append(c.source[:len(c.source):len(c.source)],
		"broken_for", now.Sub(c.since).Round(time.Millisecond).String(), "suppressed", c.suppressed)...)
	c.going, c.suppressed = false, 0
}
