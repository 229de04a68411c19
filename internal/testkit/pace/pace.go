// Package pace measures time as a machine with nothing else to do would have spent it, so that a test can hold the product to "within a
// second" where other tests and programs run on the same processors.
//
// It is for tests only.
package pace

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// round is what a watch does over and over: half of it work, half of it sleep. Whoever waits for the same processors slows the work,
// whoever delays timers the sleep.
const round = 4 * time.Millisecond

var sink atomic.Uint64

func work(n int) {
	x := uint64(n)
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	sink.Store(x)
}

// perRound is how many steps of work make half a round where nothing disturbs: by the fastest of many short tries.
var perRound = sync.OnceValue(func() int {
	const steps = 100_000
	best := time.Duration(math.MaxInt64)
	for range 100 {
		begun := time.Now()
		work(steps)
		best = min(best, time.Since(begun))
	}
	return int(float64(steps) * float64(round/2) / float64(max(best, 1)))
})

// Watch is a stopwatch that runs slower where the machine does.
type Watch struct{ rounds atomic.Int64 }

// Start starts a watch, which ends with the test. It keeps half a processor busy: start it when the wait begins, and one at a time.
func Start(t testing.TB) *Watch {
	w := &Watch{}
	n, done := perRound(), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			work(n)
			time.Sleep(round / 2)
			w.rounds.Add(1)
		}
	})
	t.Cleanup(func() { close(done); ended.Wait() })
	return w
}

// Elapsed is the time since the start, at most; less where the machine was busy with other things.
func (w *Watch) Elapsed() time.Duration { return time.Duration(w.rounds.Load()) * round }

// Within waits until f returns "", and fails the test with what it says once the watch has passed the limit. A limit of a second is a second
// on an idle machine (a little more: rounds take longer than they are said to), and as much longer as a busy one is slower.
func Within(t testing.TB, limit time.Duration, f func() string) {
	t.Helper()
	w := Start(t)
	for {
		late := w.Elapsed() > limit // before f is asked, so that it is asked once more after the limit
		said := f()
		if said == "" {
			return
		}
		if late {
			t.Errorf("after %v: %s", limit, said)
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}
