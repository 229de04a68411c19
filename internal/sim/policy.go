package sim

import "pointsman.dev/pointsman/internal/route"

// Policy says who picks. Name and Source are for reports: Source names where the rule was read.
type Policy struct {
	Name   string
	Source string
	Params func(*route.Params) // changes the gateway's own policy; nil: as it is
	Choose Chooser             // nil: the gateway's own route.Choose
	Blocks bool                // Choose reads View.Unique and View.Fresh
}

// Chooser is a pick as a pure function: the slot, or -1.
type Chooser func(*View) int

// View is what a Chooser knows: the same reports, books and index as the gateway's own policy.
type View struct {
	Snapshot *route.Snapshot
	Request  route.Request
	Hits     []int32  // leading prompt tokens that each slot holds; nil: prefixes do not count
	Exclude  []uint64 // bit set: may not be picked
	Count    uint64   // picks before this one
	Rand     uint64

	least uint8 // rank of the best admission that there is

	Unique []int64 // with Policy.Blocks: distinct tokens of the requests in flight on each slot,
	Fresh  []int64 // and how many more this one would make them
}

// Usable reports whether slot i may be picked: as in the gateway's own policy, what health advises against only when nothing else is there.
func (v *View) Usable(i int) bool { return v.allowed(i) && v.rank(i) == v.least }

func (v *View) allowed(i int) bool { return v.Exclude[i>>6]&(1<<(i&63)) == 0 }

func (v *View) rank(i int) uint8 { return route.Rank(v.Snapshot.Endpoints[i].Admission) }

// NewView returns a view of endpoints of which those in exclude may not be picked.
func NewView(s *route.Snapshot, exclude []uint64) View {
	v := View{Snapshot: s, Exclude: exclude, least: route.LastResort}
	for i := range s.Endpoints {
		if v.allowed(i) {
			v.least = min(v.least, v.rank(i))
		}
	}
	return v
}

// Hit returns the tokens of the prompt that slot i holds.
func (v *View) Hit(i int) float64 {
	if v.Hits == nil {
		return 0
	}
	return float64(v.Hits[i])
}

// New returns the tokens of the prompt that slot i would have to compute.
func (v *View) New(i int) float64 { return float64(v.Request.PromptTokens) - v.Hit(i) }

// Lowest returns the usable slot with the lowest score; chance decides between equals. keep limits the choice; nil: all.
func (v *View) Lowest(keep func(i int) bool, score func(i int) float64) int {
	best, least, equals := -1, 0.0, uint64(0)
	for i := range v.Snapshot.Endpoints {
		if !v.Usable(i) || keep != nil && !keep(i) {
			continue
		}
		switch s := score(i); {
		case best < 0 || s < least:
			best, least, equals = i, s, 1
		case s == least:
			if equals++; mixed(v.Rand, equals)%equals == 0 {
				best = i
			}
		}
	}
	return best
}

// baseline lets a Chooser pick, and fills in what the books and the learners want of every pick.
func (g *gateway) baseline(choose Chooser, r *route.Request, hits []int32, f *flight, rnd uint64) route.Pick {
	v := &g.view
	*v = NewView(&g.snap, g.excluded(f))
	v.Request, v.Hits, v.Count, v.Rand, v.Unique, v.Fresh = *r, hits, g.picked, rnd, g.unique, g.fresh
	if g.active != nil {
		g.newBlocks(f)
	}
	g.picked++
	slot := choose(v)
	if slot < 0 {
		return route.Pick{Slot: -1}
	}
	return route.Price(&g.snap, r, hits, slot)
}

// newBlocks finds how many tokens f would add to those in use on each slot.
func (g *gateway) newBlocks(f *flight) {
	for i, m := range g.active {
		start, n := int32(0), int64(0)
		for k := len(f.chain) - 1; k >= 0; k-- {
			if m[f.chain[k].Hash] > 0 {
				start = f.chain[k].End
				break
			}
		}
		if k := len(f.chain); k > 0 {
			n = int64(f.chain[k-1].End - start)
		}
		g.fresh[i] = n / bytesPerToken
	}
}

// Ours is the policy of the gateway as it is delivered.
func Ours() Policy { return Policy{Name: "pointsman", Source: "internal/route"} }

func variant(name string, params func(*route.Params)) Policy {
	return Policy{Name: name, Source: "internal/route", Params: params}
}

// Variants are the settings of the gateway's own policy that users can choose, and prefix_only: the gates, and as the cost nothing but the
// prefill of what an endpoint does not hold.
func Variants() []Policy {
	return []Policy{
		variant("pointsman/strict", func(p *route.Params) { p.Gates = route.GatesStrict }),
		variant("pointsman/gates_off", func(p *route.Params) { p.Gates = route.GatesOff }),
		variant("pointsman/when_full_requests", func(p *route.Params) { p.WhenFull = route.Requests }),
		variant("pointsman/least_request", func(p *route.Params) { p.Policy = route.LeastRequest }),
		variant("pointsman/prefix_only", func(p *route.Params) { p.Without = allBut(route.TermWork) }),
	}
}

// allBut leaves one term in the cost; that nearly equal costs count as equal stays too.
func allBut(keep route.Terms) (without route.Terms) {
	for _, t := range route.AllTerms() {
		if t.Term != keep && t.Term != route.TermTies {
			without |= t.Term
		}
	}
	return without
}

// Policies returns every policy: ours, its variants, the baselines.
func Policies() []Policy {
	return append(append([]Policy{Ours()}, Variants()...), Baselines()...)
}

// PolicyByName returns a policy by its Name; false when there is none.
func PolicyByName(name string) (Policy, bool) {
	for _, p := range Policies() {
		if p.Name == name {
			return p, true
		}
	}
	return Policy{}, false
}
