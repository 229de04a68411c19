package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/sim"
)

// Enough is the goodput in percent from which a fleet counts as large enough.
const Enough = 99

// answer says in sentences what the lines mean for the question that was asked: a change against what there is, how many endpoints, which
// policy; of a single line, what spoils it most.
func (r *Report) answer() []string {
	var out []string
	switch sizes := r.sizes(); {
	case len(r.Lines) == 0:
		return nil
	case r.Base != "":
		for _, p := range r.others() {
			out = append(out, fmt.Sprintf("%s: %s", p.Name, change(&r.Lines[r.own()], p)))
		}
	case len(sizes) > 1:
		out = howMany(sizes)
	case len(r.Lines) > 1:
		out = append(out, r.whichPolicy())
	default:
		return r.spoilt()
	}
	if r.Seeds < 3 {
		out = append(out, "Small differences may be chance: --seeds 5 tells.")
	}
	return out
}

// others are the lines but the one that the rest is compared with.
func (r *Report) others() (out []*Policy) {
	for i := range r.Lines {
		if i != r.own() {
			out = append(out, &r.Lines[i])
		}
	}
	return out
}

// change says how p differs from what there is.
func change(base, p *Policy) string {
	diff, word := p.Mean-base.Mean, "no worse and no better"
	faster := base.Overall.TTFT.P95 / max(p.Overall.TTFT.P95, 1e-9)
	switch chance := max(0.1, math.Hypot(base.Half, p.Half)); {
	case diff > chance:
		word = "better"
	case diff < -chance:
		word = "worse"
	case p.Overall.TTFT.P95 > 0 && faster > 1.1:
		word = "as many good, faster"
	case base.Overall.TTFT.P95 > 0 && faster < 1/1.1:
		word = "as many good, slower"
	}
	return fmt.Sprintf("%s. Goodput %s instead of %s %%, first token within %s instead of %s for 95 %%, per token %s instead of %s.", word,
		p.goodput(), base.goodput(), text(p.Overall.TTFT.P95), text(base.Overall.TTFT.P95), text(p.Overall.TPOT.P95), text(base.Overall.TPOT.P95))
}

// sizes are the lines of the gateway's own policy, or of the only one, one of each size of the fleet, smallest first.
func (r *Report) sizes() []*Policy {
	var out []*Policy
	suffix := sim.Ours().Name
	if !slices.ContainsFunc(r.Lines, func(p Policy) bool { return strings.HasSuffix(p.Name, suffix) }) && len(r.Lines) > 0 {
		_, suffix, _ = strings.Cut(r.Lines[0].Name, ", ")
	}
	for i := range r.Lines {
		if strings.HasSuffix(r.Lines[i].Name, suffix) {
			out = append(out, &r.Lines[i])
		}
	}
	slices.SortStableFunc(out, func(a, b *Policy) int { return cmp.Compare(len(a.Endpoints), len(b.Endpoints)) })
	return slices.CompactFunc(out, func(a, b *Policy) bool { return len(a.Endpoints) == len(b.Endpoints) })
}

// howMany says how many endpoints are enough.
func howMany(sizes []*Policy) []string {
	i := slices.IndexFunc(sizes, func(p *Policy) bool { return p.Mean >= Enough })
	if i < 0 {
		last := sizes[len(sizes)-1]
		return []string{fmt.Sprintf("None of these is enough for %d %%: %d endpoints have %s %% good.", Enough, len(last.Endpoints), last.goodput())}
	}
	p := sizes[i]
	s := fmt.Sprintf("%d endpoints are enough for %d %%: %s %% are good", len(p.Endpoints), Enough, p.goodput())
	if i > 0 {
		s += fmt.Sprintf(", with %d it is %s %%", len(sizes[i-1].Endpoints), sizes[i-1].goodput())
	}
	out := []string{s + "."}
	if p.AllFull > 0 {
		out = append(out, fmt.Sprintf("They have no reserve: all were full for %s.", text(p.AllFull)))
	}
	return out
}

// whichPolicy says how far the gateway's own policy is from the best of the others, or the best from the next.
func (r *Report) whichPolicy() string {
	p := &r.Lines[r.own()]
	best := r.others()[0]
	switch diff := p.Mean - best.Mean; {
	case diff >= 0.05:
		return fmt.Sprintf("%s is best: %s %% are good, %.1f points more than with the next, %s.", p.Name, p.goodput(), diff, best.Name)
	case diff > -0.05:
		return fmt.Sprintf("%s and %s are alike: %s %% are good.", p.Name, best.Name, p.goodput())
	default:
		return fmt.Sprintf("%s is best: %s %% are good, %.1f points more than with %s.", best.Name, best.goodput(), -diff, p.Name)
	}
}

// spoilt names the most frequent reason why requests of the only line were not good.
func (r *Report) spoilt() []string {
	p := &r.Lines[0]
	o := &p.Overall
	most, why := 0, ""
	for _, x := range []struct {
		n   int
		why string
	}{
		{o.Late, "the first token was late"},
		{o.Slow, "tokens were slow"},
		{p.TooLong, "the prompt does not fit the KV memory"},
		{o.Refused - p.TooLong, "there was no endpoint"},
		{o.Failed, "the endpoint went away"},
		{o.Unfinished, "the answer was not complete a minute after the last arrival"},
	} {
		if x.n > most {
			most, why = x.n, x.why
		}
	}
	if most == 0 {
		return []string{fmt.Sprintf("All %d requests are good.", o.Requests-o.Excused)}
	}
	return []string{fmt.Sprintf("%s %% are good. The main reason why others are not: %s, %d of %d.", p.goodput(), why, most, o.Requests-o.Excused-o.Good)}
}
