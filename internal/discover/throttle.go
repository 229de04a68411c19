package discover

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
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

const (
	// repeatAfter is how long a failure that goes on stays silent in the log.
	repeatAfter = time.Minute
	// reasons is how many different failures are logged in that time.
	reasons = 4
)

// Complaint logs a source that is broken: at once when it breaks or breaks otherwise, then once a minute with the number
// of the silent failures between, and once when it is whole again. It is for one goroutine.
type Complaint struct {
	log        *slog.Logger
	condition  *Condition
	source     []any // attributes that name the source
	going      bool  // broken at the moment
	since      time.Time
	last       time.Time
	said       []string // what was logged within the last minute, without digits
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
	if !c.going {
		c.since = now
	}
	if !c.going || now.Sub(c.last) >= repeatAfter {
		c.last, c.said = now, nil
	}
	reason := strings.Map(letters, err.Error())
	if len(c.said) == reasons || slices.Contains(c.said, reason) {
		c.suppressed++
		return
	}
	c.said = append(c.said, reason)
	c.log.Warn("endpoints source broken, the last good set stays", append(c.source[:len(c.source):len(c.source)],
		"err", err.Error(), "endpoints", endpoints, "suppressed", c.suppressed)...)
	c.going, c.suppressed = true, 0
}

// letters leaves digits out: the resolver's errors hold port numbers that change each time.
func letters(r rune) rune {
	if unicode.IsDigit(r) {
		return -1
	}
	return r
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
