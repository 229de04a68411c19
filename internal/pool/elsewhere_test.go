package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pointsman.dev/pointsman/internal/health"
)

// TestOwnBookings: each endpoint lists the bookings that are there and no others, wherever they moved to.
func TestOwnBookings(t *testing.T) {
	const endpoints = 4
	p, _ := testPool(t, endpoints, Config{Policy: Prefix})
	p.Share()
	rnd := rand.New(rand.NewPCG(1, 2))
	var open []*Booking
	for step := range 2000 {
		k := 0
		if len(open) > 0 {
			k = rnd.IntN(len(open))
		}
		switch what := rnd.IntN(4); {
		case len(open) == 0 || what == 0 && len(open) < 20:
			open = append(open, mustPick(t, p, prompt(fmt.Sprint(step), chain(1, uint64(step), 4, 8))))
		case what == 1:
			open[k].Moved(fmt.Sprintf("10.0.0.%d:8000", rnd.IntN(endpoints)), rnd.IntN(2) == 0)
		case what == 2:
			open[k].Repick(health.KindBusy)
		default:
			open[k].Done(Result{Outcome: ClientCancelled})
			open = append(open[:k], open[k+1:]...)
		}
		at := map[*slot]int{}
		for _, b := range open {
			at[b.s]++
		}
		for i, s := range p.slots {
			n := 0
			for b := s.ours; b != nil && n <= len(open); b = b.nextOwn {
				if n++; b.s != s || !b.booked {
					t.Fatalf("step %d: endpoint %d lists a booking that is at %v", step, i, b.ep)
				}
			}
			if n != at[s] || s.live != n {
				t.Fatalf("step %d: endpoint %d lists %d bookings and counts %d, want %d", step, i, n, s.live, at[s])
			}
		}
	}
}
