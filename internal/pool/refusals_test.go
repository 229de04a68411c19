package pool

import (
	"testing"
	"time"
)

// TestFastRefusals: four clients ask one after the other; the first endpoint refuses everything within a millisecond, the
// others take 100. Clients' own mistakes, which all endpoints refuse, change nothing.
func TestFastRefusals(t *testing.T) {
	for _, n := range []int{2, 4} {
		p, c := testPool(t, n, Config{Name: "p"})
		type open struct {
			b    *Booking
			ends time.Duration
		}
		var flying []open
		refused, total, last := 0, 0, 0
		for total < 400 {
			for len(flying) < 4 {
				b := mustPick(t, p, prompt("r", chain(uint64(total), 1, 8, 8)))
				total++
				took := 100 * time.Millisecond
				if b.Endpoint().URL.String() == addr(0) {
					took = time.Millisecond
					refused++
					last = total
				}
				flying = append(flying, open{b, c.now() + took})
			}
			next := 0
			for i := range flying {
				if flying[i].ends < flying[next].ends {
					next = i
				}
			}
			f := flying[next]
			flying = append(flying[:next], flying[next+1:]...)
			c.advance(max(0, f.ends-c.now()))
			if f.b.Endpoint().URL.String() == addr(0) {
				f.b.Done(Result{Outcome: ClientError, Status: 401})
				continue
			}
			f.b.FirstToken()
			f.b.Done(ok(500, 10))
		}
		if refused > 12 {
			t.Errorf("%d endpoints: %d of %d requests went to the one that refuses everything, the last was number %d", n, refused, total, last)
		}
		if st := endpoint(t, p, 0); st.State != "ready" {
			t.Errorf("the endpoint is %s: refusals eject nobody", st.State)
		}
	}
}

// TestMistakesEverywhere: requests that every endpoint refuses leave the load as even as it was.
func TestMistakesEverywhere(t *testing.T) {
	p, c := testPool(t, 4, Config{Name: "p"})
	counts := map[string]int{}
	for i := range 400 {
		b := mustPick(t, p, prompt("r", chain(uint64(i), 1, 8, 8)))
		counts[b.Endpoint().Name]++
		c.advance(time.Millisecond)
		b.Done(Result{Outcome: ClientError, Status: 400})
	}
	for name, k := range counts {
		if k < 60 {
			t.Errorf("%s got %d of 400", name, k)
		}
	}
	if len(counts) != 4 {
		t.Errorf("picked %v", counts)
	}
}
