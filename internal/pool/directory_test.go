package pool

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"
)

func names(to Target) []string {
	var out []string
	for _, c := range to {
		out = append(out, c.Pool.Name())
	}
	return out
}

// TestDirectoryForgets: a pool that was left out can be freed.
func TestDirectoryForgets(t *testing.T) {
	d := NewDirectory()
	freed := make(chan bool)
	func() {
		p, _ := testPool(t, 1, Config{Name: "old"})
		runtime.AddCleanup(p, func(done chan bool) { close(done) }, freed)
		d.Set([]*Pool{p}, nil)
	}()
	p, _ := testPool(t, 1, Config{Name: "new"})
	d.Set([]*Pool{p}, nil)
	for deadline := time.Now().Add(time.Minute); ; {
		runtime.GC()
		select {
		case <-freed:
			runtime.KeepAlive(d)
			return
		case <-time.After(time.Millisecond):
			if time.Now().After(deadline) {
				t.Fatal("it is kept")
			}
		}
	}
}

func TestDirectoryFollowsThePools(t *testing.T) {
	d := NewDirectory()
	if _, err := d.Resolve("x"); err == nil {
		t.Error("an empty directory resolves")
	}
	small, _ := testPool(t, 1, Config{Name: "small"})
	large, _ := testPool(t, 2, Config{Name: "large"})
	d.Set([]*Pool{small, large}, []Alias{{Name: "fast", Serves: "org/m", Pools: []AliasPool{{Pool: "large"}}}, {Name: "any", Serves: "org/m"}})
	to, err := d.Resolve("org/m")
	if err != nil || !slices.Equal(names(to), []string{"small", "large"}) {
		t.Errorf("before any list was read: %v %v, want both pools tried", names(to), err)
	}
	small.Learned(addr(0), Facts{Models: []Model{{ID: "org/m", MaxModelLen: 2048}}})
	large.Learned(addr(0), Facts{Models: []Model{{ID: "org/m", MaxModelLen: 8192}, {ID: "sql", Parent: "org/m", Adapter: true}}})
	if to, _ := d.Resolve("other"); !slices.Equal(names(to), []string{"large"}) {
		t.Errorf("while one endpoint of large listed nothing: %v, want large", names(to))
	}
	large.Learned(addr(1), Facts{Models: []Model{{ID: "org/m", MaxModelLen: 8192}}})
	for name, want := range map[string][]string{"org/m": {"small", "large"}, "sql": {"large"}, "fast": {"large"}, "any": {"small", "large"}} {
		to, failed := d.Resolve(name)
		if failed != nil || !slices.Equal(names(to), want) || !d.Known(name) {
			t.Errorf("%s leads to %v (%v), want %v", name, names(to), failed, want)
		}
	}
	if to, _ := d.Resolve("fast"); to[0].Served != "org/m" || to[0].Window != 8192 {
		t.Errorf("fast leads to %+v", to)
	}
	if to, _ := d.Resolve("org/m"); to[0].Served != "org/m" || to[0].Window != 2048 {
		t.Errorf("org/m leads to %+v", to)
	}
	_, err = d.Resolve("org/n")
	var unknown *UnknownModelError
	if !errors.As(err, &unknown) || unknown.Near != "org/m" || len(unknown.Known) != 4 {
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
	d := NewDirectory()
	p, _ := testPool(t, 2, Config{Name: "chat"})
	d.Set([]*Pool{p}, nil)
	p.Learned(addr(0), Facts{Models: []Model{{ID: "a"}}})
	p.Learned(addr(1), Facts{Models: []Model{{ID: "b"}}})
	p.SetTargets(targets(1))
	if !d.Known("a") || d.Known("b") {
		t.Errorf("a known %v, b known %v, want true and false", d.Known("a"), d.Known("b"))
	}
}

// Pools that list the same model stand in the order of their windows, a name of their own each where the entry says so.
func TestDirectoryWindows(t *testing.T) {
	d := NewDirectory()
	large, _ := testPool(t, 1, Config{Name: "large"})
	unknown, _ := testPool(t, 1, Config{Name: "unknown"})
	small, _ := testPool(t, 1, Config{Name: "small"})
	d.Set([]*Pool{large, unknown, small}, []Alias{
		{Name: "chat", Serves: "m", Pools: []AliasPool{{Pool: "small", Serves: "m-8k"}, {Pool: "large"}, {Pool: "small", Serves: "twice"}, {Pool: "gone"}}},
		{Name: "nowhere", Pools: []AliasPool{{Pool: "gone"}}},
	})
	large.Learned(addr(0), Facts{Models: []Model{{ID: "m", MaxModelLen: 131072}}})
	unknown.Learned(addr(0), Facts{Models: []Model{{ID: "m"}}})
	small.Learned(addr(0), Facts{Models: []Model{{ID: "m", MaxModelLen: 8192}, {ID: "m-8k", MaxModelLen: 8192}}})
	to, err := d.Resolve("m")
	if err != nil || !slices.Equal(names(to), []string{"small", "large", "unknown"}) {
		t.Errorf("m leads to %v (%v)", names(to), err)
	}
	to, err = d.Resolve("chat")
	if want := (Target{{small, "m-8k", 8192}, {large, "m", 131072}}); err != nil || !slices.Equal(to, want) {
		t.Errorf("chat leads to %+v (%v)", to, err)
	}
	if _, err := d.Resolve("nowhere"); err == nil {
		t.Error("a name whose pools are gone leads somewhere")
	}
	for _, m := range d.List() {
		if want := map[string]int{"m": 131072, "m-8k": 8192, "chat": 131072}[m.ID]; m.MaxModelLen != want {
			t.Errorf("%s is listed with a window of %d, want %d", m.ID, m.MaxModelLen, want)
		}
	}
}
