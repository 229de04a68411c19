package routecase

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pointsman.dev/pointsman/internal/route"
)

// draws is how often a request is picked, with different chance, so that a wish holds for every outcome.
const draws = 128

// outcome is what came of one request.
type outcome struct {
	sc    *scene
	picks []bool // slots that came up
	none  bool
	x     route.Explanation
}

func (sc *scene) run(name string) []error {
	var errs []error
	for i := range sc.asks {
		a := &sc.asks[i]
		o := sc.pick(a)
		for _, l := range a.wants {
			if err := o.meets(l.words); err != "" {
				errs = append(errs, fault(name, l.number, "want %s: %s\n%s", strings.Join(l.words, " "), err, o.table()))
			}
		}
	}
	return errs
}

// hits returns the tokens of the request's leading blocks that each endpoint holds.
func (sc *scene) hits(a *ask) []int32 {
	hits := make([]int32, len(sc.names))
	for i, held := range sc.holds {
		n := 0
		for n < len(a.blocks) && slices.Contains(held, a.blocks[n]) {
			n++
		}
		hits[i] = int32(min(float64(n)*sc.blockTokens, maxTokens))
	}
	return hits
}

func (sc *scene) pick(a *ask) *outcome {
	o := &outcome{sc: sc, picks: make([]bool, len(sc.names))}
	hits := sc.hits(a)
	for rnd := range uint64(draws) {
		p := route.Choose(&sc.snap, &a.request, hits, nil, rnd*0x9e3779b97f4a7c15)
		if p.Slot < 0 {
			o.none = true
			continue
		}
		o.picks[p.Slot] = true
	}
	o.x = route.Explain(&sc.snap, &a.request, hits, nil, 0)
	return o
}

// check says what is wrong with the words of a wish, before anything runs.
func (sc *scene) check(words []string) string {
	args := words[1:]
	switch words[0] {
	case "pick":
		return sc.checkPick(args)
	case "never", "full":
		if len(args) == 0 {
			return "reading " + words[0] + ": want NAME..."
		}
		if words[0] == "full" && len(args) == 1 && args[0] == "none" {
			return ""
		}
	case "reason":
		if len(args) != 1 || !slices.Contains(reasons, args[0]) {
			return "reading reason: want one of " + strings.Join(reasons, ", ")
		}
		return ""
	default:
		return sc.checkFigures(words)
	}
	return sc.known(args)
}

func (sc *scene) checkPick(args []string) string {
	if len(args) == 1 && args[0] == "none" {
		return ""
	}
	if len(args)%2 == 0 {
		return "reading pick: want NAME, NAME or NAME, or none"
	}
	var names []string
	for i, a := range args {
		if i%2 == 0 {
			names = append(names, a)
		} else if a != "or" {
			return "reading pick: " + strconv.Quote(a) + " between names, want or"
		}
	}
	return sc.known(names)
}

var reasons = []string{"prefix", "load", "all_full", "only_one", "none"}

func (sc *scene) known(names []string) string {
	for _, n := range names {
		if !slices.Contains(sc.names, n) {
			return "no endpoint is called " + strconv.Quote(n)
		}
	}
	return ""
}

// checkFigures checks the wishes about figures of one endpoint.
func (sc *scene) checkFigures(words []string) string {
	args := words[1:]
	switch words[0] {
	case "hit":
		if len(args) != 2 {
			return "reading hit: want NAME TOKENS"
		}
		if _, err := number(args[1], 0, maxTokens); err != "" {
			return "reading hit: " + err
		}
		return sc.known(args[:1])
	case "cost":
		if len(args) != 3 || args[1] != "<" && args[1] != ">" {
			return "reading cost: want NAME < SECONDS, NAME > SECONDS or NAME < NAME"
		}
		if _, err := number(args[2], -1e9, 1e9); err != "" {
			return sc.known([]string{args[0], args[2]})
		}
		return sc.known(args[:1])
	case "gate":
		if len(args) != 3 || !slices.Contains(gates(), args[1]) || args[2] != "fails" && args[2] != "passes" {
			return "reading gate: want NAME GATE fails or NAME GATE passes, GATE one of " + strings.Join(gates(), ", ")
		}
		return sc.known(args[:1])
	}
	return "reading " + words[0] + ": want pick, never, reason, full, hit, cost or gate"
}

func gates() []string {
	out := make([]string, route.NumGates)
	for g := range out {
		out[g] = route.GateName(g)
	}
	return out
}

// meets returns what was found instead; "" when the wish is met.
func (o *outcome) meets(words []string) string {
	args := words[1:]
	switch words[0] {
	case "pick":
		return o.meetsPick(args)
	case "never":
		for _, n := range args {
			if o.picks[o.slot(n)] {
				return "it was picked"
			}
		}
	case "reason":
		if got := o.x.Pick.Reason.String(); got != args[0] {
			return "found " + got
		}
	case "full":
		return o.meetsFull(args)
	case "hit":
		want, _ := strconv.ParseFloat(args[1], 64)
		if got := o.x.Candidates[o.slot(args[0])].HitTokens; float64(got) != want {
			return fmt.Sprint("found ", got)
		}
	case "cost":
		return o.meetsCost(args)
	case "gate":
		return o.meetsGate(args)
	}
	return ""
}

func (o *outcome) meetsFull(args []string) string {
	found := []string{}
	for _, c := range o.x.Candidates {
		if c.Full {
			found = append(found, o.sc.names[c.Slot])
		}
	}
	want := slices.DeleteFunc(slices.Clone(args), func(s string) bool { return s == "none" })
	if !sameNames(found, want) {
		return "found " + listed(found)
	}
	return ""
}

func (o *outcome) meetsGate(args []string) string {
	for _, g := range o.x.Candidates[o.slot(args[0])].Gates {
		if g.Name == args[1] && g.Passed != (args[2] == "passes") {
			return fmt.Sprintf("found %s, threshold %s", trim(g.Value), trim(g.Threshold))
		}
	}
	return ""
}

func (o *outcome) slot(name string) int { return slices.Index(o.sc.names, name) }

func (o *outcome) meetsPick(args []string) string {
	found := []string{}
	for i, up := range o.picks {
		if up {
			found = append(found, o.sc.names[i])
		}
	}
	want := slices.DeleteFunc(slices.Clone(args), func(s string) bool { return s == "or" || s == "none" })
	if !sameNames(found, want) {
		return "picked " + listed(found)
	}
	return ""
}

func (o *outcome) meetsCost(args []string) string {
	a := o.x.Candidates[o.slot(args[0])].Cost
	b, err := strconv.ParseFloat(args[2], 64)
	if err != nil {
		b = o.x.Candidates[o.slot(args[2])].Cost
	}
	if a < b == (args[1] == "<") && a != b {
		return ""
	}
	return fmt.Sprintf("found %.4f and %.4f", a, b)
}

func sameNames(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " or ")
}

// table shows what was compared, for the reader of a failure.
func (o *outcome) table() string {
	var b strings.Builder
	for _, c := range o.x.Candidates {
		fmt.Fprintf(&b, "\t%s: cost %.4f", o.sc.names[c.Slot], c.Cost)
		for _, t := range c.Terms {
			if t.Seconds != 0 {
				fmt.Fprintf(&b, " %s %.4f", t.Name, t.Seconds)
			}
		}
		for _, g := range c.Gates {
			if !g.Passed {
				fmt.Fprintf(&b, " full:%s %s", g.Name, trim(g.Value))
			}
		}
		if c.Skipped != "" {
			b.WriteString(" skipped:" + c.Skipped)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}
