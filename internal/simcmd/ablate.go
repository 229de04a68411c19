package simcmd

import (
	"time"

	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// leftOut lists the gateway's policy, and without each of its parts.
func (o *options) leftOut() []row {
	ours := sim.Ours()
	rows := []row{{ours.Name, ours, o.setting}}
	without := func(name string, params func(*route.Params)) {
		p := ours
		p.Params = params
		rows = append(rows, row{"without " + name, p, o.setting})
	}
	for _, t := range route.AllTerms() {
		without(t.Name, func(p *route.Params) { p.Without = t.Term })
	}
	without("gates", func(p *route.Params) { p.Gates = route.GatesOff })
	return rows
}

// otherConditions are what the outcome should not depend on, but for the last: gateways that are blind to each other.
func otherConditions() []setting {
	return []setting{
		{Report: 5 * time.Second},
		{Mixed: true},
		{Coefficients: 0.67},
		{Coefficients: 1.33},
		{Gateways: 3, Exchange: 250 * time.Millisecond},
		{Gateways: 3, Exchange: time.Second},
		{Gateways: 3, Exchange: -1},
	}
}
