package pool

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"pointsman.dev/pointsman/internal/spelling"
)

// Alias is a name that clients may ask for besides those that the endpoints list.
type Alias struct {
	Name   string // what clients say
	Serves string // what the endpoints are asked for; "" means Name
	Pools  []AliasPool
}

// AliasPool is one pool that may serve an Alias.
type AliasPool struct {
	Pool   string
	Serves string // what its endpoints are asked for; "" means that of the Alias
}

// Choice is one pool that may serve a model.
type Choice struct {
	Pool   *Pool
	Served string // the name to send to its endpoints
	Window int    // tokens of the longest window that they list for it; 0: unknown
}

// Target is where a model name leads: pools in order of preference, the small window first. It is never empty and not to be
// changed.
type Target []Choice

// UnknownModelError says that no endpoint lists a model.
type UnknownModelError struct {
	Name  string
	Near  string   // the known name that the client may have meant; "" for none
	Known []string // sorted
}

// Error implements error.
func (e *UnknownModelError) Error() string {
	if e.Near != "" {
		return fmt.Sprintf("finding model %q: no endpoint lists it; did you mean %q?", e.Name, e.Near)
	}
	return fmt.Sprintf("finding model %q: no endpoint lists it", e.Name)
}

// Directory knows which pools serve a model: what their endpoints list, and the configured aliases. It follows the
// pools by itself. Resolve costs a map look-up and takes no lock.
type Directory struct {
	mu      sync.Mutex // guards rebuilding
	pools   []*Pool
	aliases []Alias
	heard   map[*Pool]bool

	table atomic.Pointer[table]
}

// table is one immutable state of a Directory.
type table struct {
	pools  []*Pool
	byName map[string]Target
	open   []*Pool // some endpoint of theirs never listed its models: it may serve anything
	list   []Model
	names  []string
}

// NewDirectory returns a directory of nothing.
func NewDirectory() *Directory {
	d := &Directory{heard: map[*Pool]bool{}}
	d.table.Store(&table{})
	return d
}

// Set replaces the pools and the aliases. A pool that was left out is not to come back.
func (d *Directory) Set(pools []*Pool, aliases []Alias) {
	d.mu.Lock()
	d.pools, d.aliases = slices.Clone(pools), slices.Clone(aliases)
	var fresh []*Pool
	heard := make(map[*Pool]bool, len(pools)) // without those that are no more: they could not be freed
	for _, p := range pools {
		if !d.heard[p] {
			fresh = append(fresh, p)
		}
		heard[p] = true
	}
	d.heard = heard
	d.mu.Unlock()
	for _, p := range fresh {
		p.OnModels(d.rebuild)
	}
	d.rebuild()
}

// OnModels calls f, from any goroutine and without the pool's mutex, when the endpoints' model lists changed.
func (p *Pool) OnModels(f func()) {
	p.mu.Lock()
	p.onModels = append(slices.Clone(p.onModels), f)
	p.mu.Unlock()
}

// Pools returns the pools in the order in which they were set.
func (d *Directory) Pools() []*Pool { return slices.Clone(d.table.Load().pools) }

// List returns every name that Resolve knows, sorted, aliases included: the model list of the gateway. Aliases show
// what they serve as their root.
func (d *Directory) List() []Model { return slices.Clone(d.table.Load().list) }

// Listed says whether some endpoint ever listed its models.
func (d *Directory) Listed() bool { return slices.ContainsFunc(d.table.Load().pools, (*Pool).hasList) }

func (p *Pool) hasList() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.slots, func(s *slot) bool { return s != nil && s.listed })
}

// Known says whether Resolve knows a name for certain. Metrics fold all other names into one label.
func (d *Directory) Known(name string) bool {
	_, ok := d.table.Load().byName[name]
	return ok
}

// Resolve finds the pools of a model. A name that nobody lists leads to the pools whose endpoints did not say yet,
// or cannot say, what they serve; if there are none, the error is an *UnknownModelError.
func (d *Directory) Resolve(model string) (Target, error) {
	t := d.table.Load()
	if to, ok := t.byName[model]; ok {
		return to, nil
	}
	if len(t.open) > 0 {
		to := make(Target, len(t.open))
		for i, p := range t.open {
			to[i] = Choice{Pool: p, Served: model}
		}
		return to, nil
	}
	return Target{}, &UnknownModelError{Name: model, Near: spelling.Name(model, t.names), Known: slices.Clone(t.names)}
}

// rebuild makes the table anew.
func (d *Directory) rebuild() {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &table{pools: d.pools, byName: map[string]Target{}}
	cards := map[string]Model{}
	lists := map[string]Target{}
	byName := map[string]*Pool{}
	for _, p := range d.pools {
		byName[p.Name()] = p
		models, open := p.Models()
		if open {
			t.open = append(t.open, p)
		}
		for _, m := range models {
			lists[m.ID] = append(lists[m.ID], Choice{Pool: p, Served: m.ID, Window: m.MaxModelLen})
			if old, ok := cards[m.ID]; ok {
				old.MaxModelLen = max(old.MaxModelLen, m.MaxModelLen) // what a client may use
				m = old
			}
			cards[m.ID] = m
		}
	}
	for id, choices := range lists {
		slices.SortStableFunc(choices, smallFirst)
		t.byName[id] = choices
	}
	for _, a := range d.aliases {
		d.alias(t, a, byName, lists, cards)
	}
	t.open = slices.DeleteFunc(t.open, func(p *Pool) bool { return p.empty() && d.named(p) })
	for _, m := range cards {
		t.list = append(t.list, m)
		t.names = append(t.names, m.ID)
	}
	slices.SortFunc(t.list, func(a, b Model) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(t.names)
	d.table.Store(t)
}

// named says whether a configured name leads to p by that of the pool.
func (d *Directory) named(p *Pool) bool {
	name := p.Name()
	return slices.ContainsFunc(d.aliases, func(a Alias) bool {
		return slices.ContainsFunc(a.Pools, func(ap AliasPool) bool { return ap.Pool == name })
	})
}

// smallFirst orders by window, those that are unknown last.
func smallFirst(a, b Choice) int {
	if a.Window == 0 || b.Window == 0 {
		return cmp.Compare(b.Window, a.Window)
	}
	return cmp.Compare(a.Window, b.Window)
}

// alias enters one configured name. Without pools of its own it goes where what it serves is listed.
func (d *Directory) alias(t *table, a Alias, byName map[string]*Pool, lists map[string]Target, cards map[string]Model) {
	served := cmp.Or(a.Serves, a.Name)
	var to Target
	for _, ap := range a.Pools {
		p := byName[ap.Pool]
		if p == nil || slices.ContainsFunc(to, func(c Choice) bool { return c.Pool == p }) {
			continue
		}
		name := cmp.Or(ap.Serves, served)
		to = append(to, Choice{Pool: p, Served: name, Window: windowOf(lists[name], p)})
	}
	if len(a.Pools) == 0 {
		to = lists[served]
		if len(to) == 0 {
			for _, p := range d.pools {
				to = append(to, Choice{Pool: p, Served: served})
			}
		}
	}
	if len(to) == 0 {
		return
	}
	t.byName[a.Name] = to
	cards[a.Name] = aliasCard(a.Name, to, cards)
}

// windowOf returns the window that a pool's endpoints list for a model, 0 if they do not.
func windowOf(listed Target, p *Pool) int {
	for _, c := range listed {
		if c.Pool == p {
			return c.Window
		}
	}
	return 0
}

// aliasCard is the entry of an alias in the model list: that of what it leads to first, with the longest window of all.
func aliasCard(name string, to Target, cards map[string]Model) Model {
	card := cards[to[0].Served]
	if name != to[0].Served {
		card.Root, card.Parent = to[0].Served, ""
	}
	card.ID = name
	for _, c := range to {
		card.MaxModelLen = max(card.MaxModelLen, c.Window)
	}
	return card
}
