package pool

import (
	"errors"
	"slices"
	"testing"
)

func names(pools []*Pool) []string {
	var out []string
	for _, p := range pools {
		out = append(out, p.Name())
	}
	return out
}

func TestDirectoryFollowsThePools(t *testing.T) {
	near := func(_ string, known []string) string { return append(known, "")[0] }
	d := NewDirectory(near)
	if _, err := d.Resolve("x"); err == nil {
		t.Error("an empty directory resolves")
	}
	small, _ := testPool(t, 1, Config{Name: "small"})
	large, _ := testPool(t, 2, Config{Name: "large"})
	d.Set([]*Pool{small, large}, []Alias{{Name: "fast", Serves: "org/m", Pools: []string{"large"}}, {Name: "any", Serves: "org/m"}})
	to, err := d.Resolve("org/m")
	if err != nil || !slices.Equal(names(to.Pools), []string{"small", "large"}) {
		t.Errorf("before any list was read: %v %v, want both pools tried", names(to.Pools), err)
	}
	small.Learned(addr(0), Facts{Models: []Model{{ID: "org/m", MaxModelLen: 2048}}})
	large.Learned(addr(0), Facts{Models: []Model{{ID: "org/m", MaxModelLen: 8192}, {ID: "sql", Parent: "org/m", Adapter: true}}})
	if to, _ := d.Resolve("other"); !slices.Equal(names(to.Pools), []string{"large"}) {
		t.Errorf("while one endpoint of large listed nothing: %v, want large", names(to.Pools))
	}
	large.Learned(addr(1), Facts{Models: []Model{{ID: "org/m", MaxModelLen: 8192}}})
	for name, want := range map[string][]string{"org/m": {"small", "large"}, "sql": {"large"}, "fast": {"large"}, "any": {"small", "large"}} {
		to, failed := d.Resolve(name)
		if failed != nil || !slices.Equal(names(to.Pools), want) || !d.Known(name) {
			t.Errorf("%s leads to %v (%v), want %v", name, names(to.Pools), failed, want)
		}
	}
	if to, _ := d.Resolve("fast"); to.Served != "org/m" || !to.Rewritten {
		t.Errorf("fast is served as %q, rewritten %v", to.Served, to.Rewritten)
	}
	if to, _ := d.Resolve("org/m"); to.Served != "org/m" || to.Rewritten {
		t.Errorf("org/m is served as %q, rewritten %v", to.Served, to.Rewritten)
	}
	_, err = d.Resolve("org/n")
	var unknown *UnknownModelError
	if !errors.As(err, &unknown) || unknown.Near != "any" || len(unknown.Known) != 4 {
		t.Errorf("an unknown name gives %v", err)
	}
	var ids []string
	for _, m := range d.List() {
		ids = append(ids, m.ID)
	}
	if !slices.Equal(ids, []string{"any", "fast", "org/m", "sql"}) {
		t.Errorf("the list is %v", ids)
	}
}

func TestModelsGoWithTheirEndpoint(t *testing.T) {
	d := NewDirectory(nil)
	p, _ := testPool(t, 2, Config{Name: "chat"})
	d.Set([]*Pool{p}, nil)
	p.Learned(addr(0), Facts{Models: []Model{{ID: "a"}}})
	p.Learned(addr(1), Facts{Models: []Model{{ID: "b"}}})
	p.SetTargets(targets(1))
	if !d.Known("a") || d.Known("b") {
		t.Errorf("a known %v, b known %v, want true and false", d.Known("a"), d.Known("b"))
	}
}
