package routecase

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const good = `# two endpoints
-- pool --
a running=3 kv=0.41 holds=h1,h2
b running=1 kv=0.10   # nearly idle
-- request --
blocks=h1,h2,h3
-- want --
pick a
`

func TestGood(t *testing.T) {
	if err := Run("case", []byte(good)); err != nil {
		t.Error(err)
	}
}

// A wish that is not met says where, what was found, and shows the costs.
func TestUnmetWishes(t *testing.T) {
	for _, c := range []struct{ wish, want string }{
		{"pick b", "case:8: want pick b: picked a\n\ta: cost "},
		{"pick a or b", "case:8: want pick a or b: picked a"},
		{"pick none", "case:8: want pick none: picked a"},
		{"never a", "case:8: want never a: it was picked"},
		{"reason all_full", "case:8: want reason all_full: found prefix"},
		{"full a b", "case:8: want full a b: found none"},
		{"hit a 4", "case:8: want hit a 4: found 512"},
		{"cost b < a", "case:8: want cost b < a: found "},
		{"cost a < 0.001", "case:8: want cost a < 0.001: found "},
		{"gate a waiting fails", "case:8: want gate a waiting fails: found 0, threshold 1"},
	} {
		err := Run("case", []byte(strings.Replace(good, "pick a", c.wish, 1)))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.wish, err, c.want)
		}
	}
	for _, wish := range []string{"pick a", "never b", "reason prefix", "full none", "hit a 512", "cost a < b", "cost a > 0.001", "gate a waiting passes"} {
		if err := Run("case", []byte(strings.Replace(good, "pick a", wish, 1))); err != nil {
			t.Errorf("%s: %v", wish, err)
		}
	}
}

func TestEveryUnmetWishIsTold(t *testing.T) {
	err := Run("case", []byte(strings.Replace(good, "pick a", "pick b\nreason load\npick a\nfull a", 1)))
	for _, want := range []string{"case:8: ", "case:9: ", "case:11: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "case:10: ") {
		t.Errorf("a wish that is met is told: %v", err)
	}
}

func TestBadCases(t *testing.T) {
	for _, c := range []struct{ old, fresh, want string }{
		{good, "", `case:1: reading case: no section, want -- pool --, -- request -- and -- want --`},
		{"-- want --\npick a\n", "", `case:5: reading case: it ends with "request", want a section "want" after it`},
		{"-- want --", "-- wish --", `case:7: reading section "wish": unknown, want settings, pool, request or want`},
		{"-- pool --", "-- request --", `case:2: reading section "request": it stands after "", want it after one of ["pool" "want"]`},
		{"b running=1", "a running=1", `case:4: reading endpoint a: the name is taken`},
		{"b running=1", "running=1", `case:4: reading endpoint: it begins with "running=1", want a name`},
		{"running=1", "running=x", `case:4: reading running=x: want a number`},
		{"running=1", "running=-1", `case:4: reading running=-1: want a number from 0 to 1e+06`},
		{"running=1", "running=", `case:4: reading running: no value after =`},
		{"kv=0.10", "kv=1.5", `case:4: reading kv=1.5: want a number from 0 to 1`},
		{"kv=0.10", "kv=NaN", `case:4: reading kv=NaN: want a number`},
		{"kv=0.10", "kvs=1", `case:4: reading kvs=1: unknown key kvs, want one of block, booked, capacity`},
		{"kv=0.10", "health=fine", `case:4: reading health=fine: want one of normal, trial, avoid, last_resort`},
		{"holds=h1,h2", "holds=h1,,h2", `case:3: reading holds=h1,,h2: want block names separated by single commas`},
		{"blocks=h1,h2,h3", "", `case:5: reading section "request": no prompt, want blocks=... or tokens=N`},
		{"blocks=h1,h2,h3", "prompt=3", `case:6: reading prompt=3: unknown key, want blocks, tokens or max_tokens`},
		{"pick a", "", `case:7: reading section "want": it is empty`},
		{"pick a", "take b", `case:8: reading take: want pick, never, reason, full, hit, cost or gate`},
		{"pick a", "pick", `case:8: reading pick: want NAME, NAME or NAME, or none`},
		{"pick a", "pick a and b", `case:8: reading pick: "and" between names, want or`},
		{"pick a", "pick z", `case:8: no endpoint is called "z"`},
		{"pick a", "reason luck", `case:8: reading reason: want one of prefix, load, all_full, only_one, none`},
		{"pick a", "never", `case:8: reading never: want NAME...`},
		{"pick a", "hit a", `case:8: reading hit: want NAME TOKENS`},
		{"pick a", "hit a lot", `case:8: reading hit: want a number`},
		{"pick a", "cost a = b", `case:8: reading cost: want NAME < SECONDS, NAME > SECONDS or NAME < NAME`},
		{"pick a", "cost a < z", `case:8: no endpoint is called "z"`},
		{"pick a", "gate a kv fails", `case:8: reading gate: want NAME GATE fails or NAME GATE passes, GATE one of waiting, max_num_seqs, projected_kv`},
		{"# two endpoints\n", "-- settings --\ngates=soft\n", `case:2: reading gates=soft: want one of default, strict, off`},
		{"# two endpoints\n", "-- settings --\nprofile=abacus\n", `case:2: reading profile=abacus: unknown profile`},
		{"# two endpoints\n", "-- settings --\nprojected_kv=2\n", `case:2: reading projected_kv=2: want a number from 0.01 to 1`},
		{"# two endpoints\n", "-- settings --\nspeed=2\n", `case:2: reading speed=2: unknown key speed, want one of block_tokens, gates`},
	} {
		err := Run("case", []byte(strings.Replace(good, c.old, c.fresh, 1)))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q for %q:\n got %v\nwant %s", c.fresh, c.old, err, c.want)
		}
	}
}

var located = regexp.MustCompile(`^name:\d+: `)

// Whatever the file, Run returns and its error says where.
func FuzzRun(f *testing.F) {
	f.Add([]byte(good))
	files, err := filepath.Glob("../route/testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 {
			return
		}
		if err := Run("name", data); err != nil && !located.MatchString(err.Error()) {
			t.Errorf("error without a place: %v", err)
		}
	})
}
