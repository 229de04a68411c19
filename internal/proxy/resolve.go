package proxy

import (
	"strconv"
	"time"
)

// limit sets the limits of a model that has its own.
func (x *exchange) limit(model string) {
	own, ok := x.p.cfg.Models[model]
	if !ok {
		return
	}
	own = own.withDefaults()
	x.watch.limit(own)
	x.limitText = secondsText(own.Limit)
	x.ownHeaders()
}

// secondsText is a limit as headerLimit says it.
func secondsText(d time.Duration) []string {
	return []string{strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}
}
