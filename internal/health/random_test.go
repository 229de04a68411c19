package health

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Whatever happens: one trial at a time, NextEvent lies ahead, nothing changes before it, and an endpoint that succeeds
// again is used again.
func TestInvariantsUnderRandomEvents(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m, now := New(0), time.Duration(0)
		for range 300 {
			now += time.Duration(rnd.Int64N(int64(3 * sec)))
			randomEvent(rnd, m, now)
			checkNext(t, m, now)
			if a := m.Admission(now); a == Trial {
				m.Trying(now)
				if m.Admission(now) == Trial {
					t.Fatalf("seed %d: a second trial is offered at %v", seed, now)
				}
				m.Booked(now, 0)
			}
		}
		recovers(t, seed, m, now)
	}
}

func randomEvent(rnd *rand.Rand, m *Machine, now time.Duration) {
	switch rnd.IntN(15) {
	case 0:
		m.ConnectFailed(now)
	case 1:
		m.Succeeded(now, ms)
	case 2, 3:
		m.Failed(now, Kind(rnd.IntN(int(KindOurs)+1)))
	case 4:
		m.ClientError(now)
	case 5:
		m.Busy(now, time.Duration(rnd.Int64N(int64(10*sec))))
	case 6:
		m.Progress(now)
	case 7, 8, 9:
		m.Booked(now, time.Duration(rnd.Int64N(int64(10*sec))))
	case 10:
		m.Released(now)
	case 11:
		m.Report(now, rnd.IntN(2) == 0)
	case 12:
		m.Health(now, []int{200, 404, 503}[rnd.IntN(3)], rnd.IntN(3) == 0)
	case 13:
		m.Connected(now)
	case 14:
		m.Mute(now)
	}
}

// checkNext demands that nothing changes by time alone before NextEvent says so.
func checkNext(t *testing.T, m *Machine, now time.Duration) {
	t.Helper()
	next := m.NextEvent(now)
	if next >= 0 && next <= now {
		t.Fatalf("next event %v is not after %v", next, now)
	}
	until := now + time.Hour
	if next >= 0 {
		until = next
	}
	for _, at := range []time.Duration{now + (until-now)/2, until - 1} {
		c, d := *m, *m
		if c.State(at) != d.State(now) || c.Admission(at) != d.Admission(now) || c.Gone(at) != d.Gone(now) {
			t.Fatalf("%v/%v at %v became %v/%v at %v, next event was %v (%+v)", d.State(now), d.Admission(now), now, c.State(at), c.Admission(at), at, next, *m)
		}
	}
}

func recovers(t *testing.T, seed uint64, m *Machine, now time.Duration) {
	t.Helper()
	for range 200 {
		now += sec
		m.Health(now, 200, false)
		m.Report(now, true)
		m.Progress(now)
		if m.Admission(now) <= Trial {
			m.Trying(now)
			m.Booked(now, 0)
			m.Succeeded(now, ms)
			m.Released(now)
		}
	}
	if st, a := m.State(now), m.Admission(now); st != Ready || a != Normal {
		t.Errorf("seed %d: %v, %v after 200 s of health (%+v)", seed, st, a, *m)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for s := range State(NumStates) {
		seen[s.String()] = true
	}
	if len(seen) != NumStates || seen["invalid"] || State(200).String() != "invalid" {
		t.Errorf("names %v", seen)
	}
}
