package config

import (
	"fmt"
	"time"
)

// The times of a configuration: what follows from what, and what two values say against each other.

// checkTimes resolves what follows from limit, and refuses what could never fire.
func (d *decoder) checkTimes(c *Config) {
	c.FirstByte = d.follows("first_byte", c.FirstByte, c.Limit, "limit", d.failed("limit"))
	c.Idle = d.follows("idle", c.Idle, c.Limit, "limit", d.failed("limit"))
	d.adviseKeepAlive(c)
}

// usualIdle is the silence after which nginx and the load balancers of AWS end a connection unless told otherwise.
const usualIdle = time.Minute

// adviseKeepAlive warns of one that comes too late.
func (d *decoder) adviseKeepAlive(c *Config) {
	v, ok := d.seen["keepalive"]
	if !ok || d.failed("limit") || d.failed("idle") {
		return
	}
	switch {
	case c.KeepAlive >= c.Limit:
		d.warn(v, "is not shorter than limit, so none is ever sent", "15s is the default")
	case c.KeepAlive >= c.Idle:
		d.warn(v, "is not shorter than idle, "+shortDuration(c.Idle)+", which cuts the stream first", "15s is the default")
	case c.KeepAlive >= usualIdle:
		d.warn(v, "comes too late for nginx and load balancers, which end a silent connection after 60s unless told otherwise", "15s is the default")
	}
}

// checkDrain resolves drain, which follows the longest limit of all.
func (d *decoder) checkDrain(c *Config) {
	limit := c.Limit
	for i := range c.Models {
		limit = max(limit, c.Models[i].Limit)
	}
	v, set := d.seen["drain"]
	switch {
	case !set || d.failed("drain"):
		c.Drain = limit
	case c.Drain > limit:
		d.warn(v, "no request outlives its limit, "+shortDuration(limit), "remove the key: drain follows limit")
	case c.Drain < limit:
		d.warn(v, "cuts answers that the limit, "+shortDuration(limit)+", allows", "remove the key: drain follows limit")
	}
}

// follows returns the value of a time that follows limit, which has the name of, unless it is set. Two values are where
// trouble starts: one of them is the time that somebody raised, the other the one that cuts.
func (d *decoder) follows(key string, set, limit time.Duration, of string, unknown bool) time.Duration {
	v, ok := d.seen[key]
	switch {
	case !ok || d.failed(key):
		return limit
	case unknown:
	case set > limit:
		d.fail(v, fmt.Sprintf("is longer than %s, %s, so it would never fire", of, shortDuration(limit)), "remove the key, or raise "+of)
	case set < limit:
		d.warn(v, fmt.Sprintf("is a second time limit beside %s, %s: whoever raises that one is still cut by this one", of, shortDuration(limit)),
			"remove the key: it follows "+of)
	}
	return set
}

// checkModelTimes does the same for a model, and reports whether it has a time of its own.
func (d *decoder) checkModelTimes(c *Config, m *Model, path string) bool {
	_, limit := d.seen[path+".limit"]
	_, first := d.seen[path+".first_byte"]
	_, idle := d.seen[path+".idle"]
	if m.Limit == 0 {
		m.Limit = c.Limit
	} else if !d.failed("limit") && m.Limit != c.Limit {
		d.warn(d.seen[path+".limit"], "is another time limit than that of the gateway, "+shortDuration(c.Limit)+": what stands in front has to allow the longest",
			"remove the key if one limit will do")
	}
	unknown := d.failed("limit") || d.failed(path+".limit")
	of := "limit"
	if limit {
		of = path + ".limit"
	}
	inherit := func(key string, own, gateway time.Duration) time.Duration {
		if _, set := d.seen[path+"."+key]; set {
			return d.follows(path+"."+key, own, m.Limit, of, unknown)
		}
		if _, set := d.seen[key]; set {
			return min(gateway, m.Limit)
		}
		return m.Limit
	}
	m.FirstByte, m.Idle = inherit("first_byte", m.FirstByte, c.FirstByte), inherit("idle", m.Idle, c.Idle)
	return limit || first || idle
}

// adviseWaiting looks at how long a pool lets requests wait.
func (d *decoder) adviseWaiting(c *Config, p *Pool, path string) {
	ends, name := c.Limit, "limit"
	if c.FirstByte < ends {
		ends, name = c.FirstByte, "first_byte"
	}
	tooLong := "is not shorter than " + name + ", " + shortDuration(ends)
	if v, ok := d.seen[path+".queue.wait"]; ok && p.Queue.Wait > 0 && p.Queue.Max == 0 {
		d.warn(v, "has no effect without queue.max", "say how many may wait, like max: 100")
	} else if ok && p.Queue.Wait >= ends {
		d.warn(v, tooLong+", so it never ends a wait", "remove the key")
	}
	if v, ok := d.seen[path+".queue.max"]; ok && p.Queue.Max > 0 && p.Gates == GatesOff {
		d.warn(v, "nobody ever waits with gates: off, since no endpoint is full", "remove one of the two")
	}
	if v, ok := d.seen[path+".hold"]; ok && p.Hold >= ends {
		d.warn(v, tooLong+", which ends the wait first", "30s is enough where an endpoint starts in 20")
	}
	if v, ok := d.seen[path+".overflow"]; ok && p.Overflow && len(c.Pools) == 1 {
		d.warn(v, "there is no other pool to take what overflows", "remove the key")
	}
}

// GracePeriod is the terminationGracePeriodSeconds that a pod of this gateway needs: its drain, and time to say that what is
// left was cut.
func (c *Config) GracePeriod() time.Duration {
	return (c.DrainDelay + c.Drain + 10*time.Second).Round(time.Second)
}
