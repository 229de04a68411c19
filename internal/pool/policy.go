package pool

import (
	"fmt"
	"log/slog"
	"slices"

	"pointsman.dev/pointsman/internal/route"
)

// choosePolicy settles the policy in force and the warnings. Auto follows the engines' own setting: least request
// only when every engine that says anything says that it caches no prefixes. The mutex is held.
func (p *Pool) choosePolicy() {
	on, off := p.caching()
	p.snap.Params.Policy = route.Prefix
	if p.cfg.Policy == LeastRequest || p.cfg.Policy == Auto && len(off) > 0 && len(on) == 0 {
		p.snap.Params.Policy = route.LeastRequest
	}
	warnings := contradictions(p.cfg.Policy, on, off)
	for _, w := range warnings {
		if !slices.Contains(p.warnings, w) {
			p.event(slog.LevelWarn, "engine setting contradicts the policy", "detail", w)
		}
	}
	p.warnings = warnings
}

// caching names the endpoints that say that they cache prefixes, and those that say that they do not.
func (p *Pool) caching() (on, off []string) {
	for _, s := range p.slots {
		if s == nil || s.leaving || s.caching() == nil {
			continue
		}
		if *s.caching() {
			on = append(on, s.ep.Name)
		} else {
			off = append(off, s.ep.Name)
		}
	}
	return on, off
}

// contradictions says where the configured policy, or one engine and another, do not agree.
func contradictions(configured Policy, on, off []string) (warnings []string) {
	if configured == Prefix && len(off) > 0 {
		warnings = append(warnings, fmt.Sprintf("policy is prefix, but prefix caching is off on %s", some(off)))
	}
	if configured == LeastRequest && len(on) > 0 {
		warnings = append(warnings, fmt.Sprintf("policy is least_request, but prefix caching is on on %s", some(on)))
	}
	if len(on) > 0 && len(off) > 0 {
		warnings = append(warnings, fmt.Sprintf("prefix caching is on on %s and off on %s", some(on), some(off)))
	}
	return warnings
}

// some lists the first few of many names.
func some(names []string) string {
	const most = 3
	if len(names) <= most {
		return fmt.Sprint(names)
	}
	return fmt.Sprintf("%v and %d more", names[:most], len(names)-most)
}

// caches says whether prefixes sent to a slot are worth remembering. The mutex is held.
func (p *Pool) caches(s *slot) bool {
	caching := s.caching()
	return p.snap.Params.Policy == route.Prefix && (caching == nil || *caching)
}

// indexModels rebuilds who lists which model. byModel holds, per model, the slots that must not be picked for it:
// those that are unused and those that have a list without it. The mutex is held.
func (p *Pool) indexModels() {
	clear(p.byModel)
	var merged []Model
	at := map[string]int{}
	for _, s := range p.slots {
		if s == nil || s.leaving {
			continue
		}
		for _, m := range s.models {
			if k, have := at[m.ID]; have {
				merged[k].MaxModelLen = max(merged[k].MaxModelLen, m.MaxModelLen)
				continue
			}
			at[m.ID] = len(merged)
			merged = append(merged, m)
		}
	}
	for id := range at {
		p.byModel[id] = p.without(id)
	}
	p.models = merged
	if len(merged) > 0 {
		p.lastModels = merged
	}
	p.modelsNew = true
}

// without returns the slots that must not be picked for a model.
func (p *Pool) without(id string) []uint64 {
	set := slices.Clone(p.unused)
	for i, s := range p.slots {
		lists := s != nil && slices.ContainsFunc(s.models, func(m Model) bool { return m.ID == id })
		if s != nil && s.listed && !lists {
			set[i>>6] |= 1 << (i & 63)
		}
	}
	return set
}

// Models returns what the endpoints list, merged, and whether some endpoint never listed anything: it may serve more. One that
// is no model server serves nothing more, unless no other says what it serves. A pool that holds requests while it has
// no endpoint goes by what its last ones listed.
func (p *Pool) Models() (list []Model, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open = len(p.byURL) == 0 && (p.cfg.Hold <= 0 || len(p.lastModels) == 0)
	for _, s := range p.slots {
		open = open || s != nil && !s.leaving && !s.listed && (len(p.models) == 0 || !s.proof.refuted())
	}
	list = p.models
	if p.cfg.Hold > 0 && len(list) == 0 {
		list = p.lastModels
	}
	return slices.Clone(list), open
}

// Ready says whether at least one endpoint is known to be usable.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready()
}
