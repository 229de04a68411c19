package routecase

import (
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/route"
)

// settings reads one line of a settings section.
func (p *parser) settings(l line) {
	s := &p.next.snap
	numbers := map[string]struct {
		lo, hi float64
		set    func(v float64)
	}{
		"waiting":      {1, 1e6, func(v float64) { s.Params.FullWaiting = int(v) }},
		"projected_kv": {0.01, 1, func(v float64) { s.Params.ProjectedKV = v }},
		"long_prompt":  {1, maxTokens, func(v float64) { s.Params.LongPrompt = int(v) }},
		"mean_output":  {1, 1e6, func(v float64) { s.Params.MeanOutput = v }},
		"scale":        {0.001, 1000, func(v float64) { s.Params.Scale = v }},
		"regret":       {0, 1, func(v float64) { s.Regret = v }},
		"block_tokens": {1, 1e6, func(v float64) { p.next.blockTokens = v }},
	}
	p.pairs(l, l.words, func(key, value string) (err string) {
		if n, ok := numbers[key]; ok {
			v, bad := number(value, n.lo, n.hi)
			if bad == "" {
				n.set(v)
			}
			return bad
		}
		switch key {
		case "policy":
			s.Params.Policy, err = word(value, route.Prefix, route.LeastRequest)
		case "gates":
			s.Params.Gates, err = word(value, route.GatesDefault, route.GatesStrict, route.GatesOff)
		case "when_full":
			s.Params.WhenFull, err = word(value, route.Seconds, route.Requests)
		case "profile":
			c, ok := route.Profile(value)
			if !ok {
				return "unknown profile"
			}
			s.Params.Coeff = c
		default:
			return unknownKey(key, numbers, "policy", "gates", "when_full", "profile")
		}
		return err
	})
}

func unknownKey[V any](key string, numbers map[string]V, others ...string) string {
	for k := range numbers {
		others = append(others, k)
	}
	slices.Sort(others)
	return "unknown key " + key + ", want one of " + strings.Join(others, ", ")
}

// line of a pool: what is said of one endpoint.
type said struct {
	e                        route.Endpoint
	foreign, queued          int32
	prompts, context, output int64
	booked, growth           int64
	holds                    []string
}

// pool reads the endpoints.
func (p *parser) pool(sc *scene, s section) {
	if len(s.lines) == 0 {
		p.fault(s.line, "reading section \"pool\": no endpoint")
	}
	for _, l := range s.lines {
		name := l.words[0]
		switch {
		case strings.Contains(name, "=") || name == "none" || name == "or":
			p.fault(l.number, "reading endpoint: it begins with %q, want a name", name)
			continue
		case slices.Contains(sc.names, name):
			p.fault(l.number, "reading endpoint %s: the name is taken", name)
			continue
		case len(sc.names) == maxEndpoints:
			p.fault(l.number, "reading endpoint %s: more than %d endpoints", name, maxEndpoints)
			return
		}
		d := &said{e: route.Endpoint{Known: true, BlockSize: 16, KVUsage: -1}, prompts: -1, context: -1, booked: -1, growth: -1}
		p.pairs(l, l.words[1:], d.set)
		sc.names = append(sc.names, name)
		sc.holds = append(sc.holds, d.holds)
		sc.snap.Endpoints = append(sc.snap.Endpoints, d.endpoint(sc.snap.Params.MeanOutput))
	}
}

func (d *said) set(key, value string) (err string) {
	e := &d.e
	counts := map[string]*int32{"running": &e.Running, "waiting": &e.Waiting, "max_num_seqs": &e.MaxNumSeqs, "block": &e.BlockSize,
		"foreign": &d.foreign, "queued": &d.queued}
	if n, ok := counts[key]; ok {
		v, bad := number(value, 0, 1e6)
		*n = int32(v)
		return bad
	}
	sums := map[string]*int64{"capacity": &e.CapacityTokens, "booked": &d.booked, "prompts": &d.prompts, "context": &d.context,
		"output": &d.output, "growth": &d.growth}
	if n, ok := sums[key]; ok {
		v, bad := number(value, 0, maxTokens)
		*n = int64(v)
		return bad
	}
	switch key {
	case "kv":
		e.KVUsage, err = number(value, 0, 1)
	case "kappa":
		e.Kappa, err = number(value, 0.1, 10)
	case "rho":
		e.Rho, err = number(value, 0, 1)
	case "penalty":
		e.Penalty, err = number(value, 0, 1e6)
	case "unknown":
		e.Known = false
	case "holds":
		d.holds, err = blockNames(value)
	case "health":
		i := slices.Index(admissions, value)
		if i < 0 {
			return "want one of " + strings.Join(admissions, ", ")
		}
		e.Admission = uint8(i)
	default:
		others := []string{"kv", "kappa", "rho", "penalty", "unknown", "holds", "health", "capacity", "booked", "prompts", "context", "output", "growth"}
		return unknownKey(key, counts, others...)
	}
	return err
}

var admissions = []string{"normal", "trial", "avoid", "last_resort"}

func blockNames(value string) ([]string, string) {
	names := strings.Split(value, ",")
	if len(names) > maxBlocks {
		return nil, "too many blocks"
	}
	if slices.Contains(names, "") {
		return nil, "want block names separated by single commas"
	}
	return names, ""
}

// endpoint fills in what follows from what was said, and from the tokens of a mean answer. The report was taken just now.
func (d *said) endpoint(answer float64) route.Endpoint {
	e := &d.e
	ours := max(0, e.Running-d.foreign)
	e.ForeignRunning, e.ForeignWaiting = min(d.foreign, e.Running), e.Waiting
	e.Requests, e.Decoding = ours+d.queued, ours
	e.Waiting += d.queued
	if d.context < 0 {
		d.context = 500 * int64(ours)
	}
	if d.booked < 0 {
		d.booked = 500 * int64(d.queued)
	}
	if d.prompts < 0 {
		d.prompts = d.context + d.booked
	}
	e.ContextTokens, e.UncachedTokens, e.OutputTokens = d.context, d.booked, d.output
	if d.growth < 0 {
		d.growth = max(0, int64(answer)*int64(e.Requests)-d.output)
	}
	e.GrowthTokens = d.growth
	e.PromptTokens = max(d.prompts, d.booked)
	e.NewTokens = e.PromptTokens
	e.AtReport = e.Load
	return *e
}

// request reads what is asked; it may take several lines.
func (p *parser) request(sc *scene, s section) {
	a := ask{line: s.line}
	tokens := 0.0
	for _, l := range s.lines {
		p.pairs(l, l.words, func(key, value string) (err string) {
			switch key {
			case "blocks":
				a.blocks, err = blockNames(value)
			case "tokens":
				tokens, err = number(value, 0, maxTokens)
			case "max_tokens":
				var v float64
				v, err = number(value, 0, maxTokens)
				a.request.MaxTokens = int32(v)
			default:
				return "unknown key, want blocks, tokens or max_tokens"
			}
			return err
		})
	}
	total := tokens + float64(len(a.blocks))*sc.blockTokens
	if total < 1 {
		p.fault(s.line, "reading section \"request\": no prompt, want blocks=... or tokens=N")
	}
	a.request.PromptTokens = int32(min(total, maxTokens))
	sc.asks = append(sc.asks, a)
}
