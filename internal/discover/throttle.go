package discover

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// Condition is whether a source works at the moment: the zero value does. Its methods may be called from any goroutine.
type Condition struct{ why atomic.Pointer[string] }

// Broken returns why the source is broken, "" while it works. The text names the source's address.
func (c *Condition) Broken() string {
	if why := c.why.Load(); why != nil {
		return *why
	}
	return ""
}

// repeatAfter is how long a failure that goes on stays silent in the log.
const repeatAfter = time.Minute

// Complaint logs a source that is broken: at once when it breaks, then once a minute with the number of the silent
// failures between, and once when it is whole again. The texts of two failures are not compared, since those of the
// resolver hold port numbers that change each time. It is for one goroutine.
type Complaint struct {
	log        *slog.Logger
	condition  *Condition
	source     []any // attributes that name the source
	going      bool  // broken at the moment
	since      time.Time
	last       time.Time
	suppressed int
}

// NewComplaint returns the complaint of the source that the attributes name: key, value, key, value. It keeps condition,
// which begins anew.
func NewComplaint(log *slog.Logger, condition *Condition, source ...any) Complaint {
	condition.why.Store(nil)
	return Complaint{log: log, condition: condition, source: source}
}

// Broken records one failure while so many endpoints are known.
func (c *Complaint) Broken(err error, endpoints int, now time.Time) {
	c.condition.why.Store(new(err.Error()))
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

// Whole records a success.
func (c *Complaint) Whole(now time.Time) {
	c.condition.why.Store(nil)
	if !c.going {
		return
	}
	c.log.Info("endpoints source whole again", append(c.source[:len(c.source):len(c.source)],
		"broken_for", now.Sub(c.since).Round(time.Millisecond).String(), "suppressed", c.suppressed)...)
	c.going, c.suppressed = false, 0
}
