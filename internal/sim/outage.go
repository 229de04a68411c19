package sim

import (
	"maps"
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/route"
)

// Outage is a time in which an endpoint does not work. To 0 means that it does not work again.
//
// Down: its process is not there. What it had breaks off, connections are refused at once, and pages are not answered. Its engines are new
// when it is back, and their caches empty.
//
// Hang: its process stands still. It takes connections and answers nothing, neither requests nor pages, and goes on afterwards with what it
// has.
type Outage struct{ From, To time.Duration }

// outages sees to it that n goes down, or stands still, and works again.
func (s *Sim) outages(n *Node) {
	for _, o := range n.spec.Down {
		s.At(o.From, func() { s.crash(n) })
		if o.To > 0 {
			s.At(o.To, func() { n.down = false })
		}
	}
	for _, o := range n.spec.Hang {
		s.At(o.From, func() { n.hung, n.hungAt = !n.down, s.now })
		if o.To > 0 {
			s.At(o.To, n.goOn)
		}
	}
}

// crash ends what an endpoint has. A generation that may have started is not started again elsewhere, as in the gateway.
func (s *Sim) crash(n *Node) {
	lost := s.cut(n, nil)
	n.past = n.Stats()
	n.past.Running, n.past.Waiting, n.past.Capacity, n.past.Deferred = 0, 0, 0, 0
	n.past.UsedBlocks, n.past.CacheBlocks, n.past.KVUsage = 0, 0, 0
	for i, r := range n.ranks {
		r.dead = true
		n.ranks[i] = newRank(n)
	}
	n.down, n.hung = true, false
	n.life++
	s.fail(n, lost)
}

// cut takes the open requests of a gateway, nil for all of them, out of an endpoint's engines, and returns them.
func (s *Sim) cut(n *Node, g *gateway) (lost []*flight) {
	for _, id := range slices.Sorted(maps.Keys(s.open)) {
		if f := s.open[id]; f.node == n && (g == nil || f.gate == g) {
			n.abort(f)
			lost = append(lost, f)
		}
	}
	return lost
}

// fail ends requests that broke off.
func (s *Sim) fail(n *Node, lost []*flight) {
	for _, f := range lost {
		f.rec.End, f.rec.Outcome = s.now, Failed
		kind := health.KindReset
		if f.rec.First > 0 {
			kind = health.KindCut
		}
		f.gate.slots[n.index].machine.Failed(f.gate.now(), kind)
		f.gate.done(f)
		s.tell(f, releaseRemote)
		s.end(f, Failed)
	}
}

// route picks until an endpoint takes the connection of f: nothing was sent to one that refuses it, so another is asked, once each.
func (s *Sim) route(f *flight) bool {
	for f.gate.pick(f) {
		n := s.nodes[f.pick.Slot]
		if !n.down {
			return true
		}
		n.Refused++
		f.tried = append(f.tried, int32(n.index))
		f.gate.slots[n.index].machine.ConnectFailed(f.gate.now())
		f.gate.done(f)
	}
	return false
}

// excluded returns the endpoints that f may not have: those that left, and those that it tried.
func (g *gateway) excluded(f *flight) []uint64 {
	if len(f.tried) == 0 {
		return g.exclude
	}
	set := append(g.scratch[:0], g.exclude...)
	for _, i := range f.tried {
		set[i>>6] |= 1 << (i & 63)
	}
	g.scratch = set
	return set
}

// unanswered is a look at the pages of an endpoint that is down.
func (g *gateway) unanswered(i int) {
	m, now := g.slots[i].machine, g.now()
	m.Report(now, false)
	if at := m.ProbeAt(now); at >= 0 && at <= now {
		m.Health(now, 0, true)
	}
	g.touch(i)
}

// pageTimeout is how long a page of an endpoint may take, as in package scrape.
const pageTimeout = 3 * time.Second

// silent is a look at an endpoint that takes connections and answers nothing. Once that counts as gone, its open answers are cut.
func (s *Sim) silent(n *Node, g *gateway) {
	sl, now := g.slots[n.index], g.now()
	if s.now-n.hungAt >= pageTimeout {
		sl.machine.Report(now, false)
	}
	if at := sl.machine.ProbeAt(now); !sl.probing && at >= 0 && at <= now {
		sl.probing = true
		s.After(pageTimeout, func() {
			sl.probing = false
			if n.hung {
				sl.machine.Mute(g.now())
			}
		})
	}
	if sl.machine.Gone(now) {
		s.fail(n, s.cut(n, g))
	}
	g.touch(n.index)
}

// goOn ends the standstill of a process that was not replaced meanwhile.
func (n *Node) goOn() {
	n.hung = false
	for _, r := range n.ranks {
		if r.late {
			r.late = false
			r.finish()
		} else {
			r.kick()
		}
	}
}

// restarted forgets what belonged to the process that was at slot i.
func (g *gateway) restarted(i int) {
	s := g.slots[i]
	s.machine.Restarted(g.now())
	s.learn.Reset()
	s.fit = route.CapacityLearner{}
	s.foreign.Unreported()
	g.index.Clear(i)
}

func newRank(n *Node) *rank {
	r := &rank{node: n, e: engine.New(n.spec.Engine)}
	r.done = r.finish
	return r
}
