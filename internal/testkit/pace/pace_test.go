package pace

import (
	"sync"
	"testing"
	"time"
)

// A watch never runs faster than the clock, and with every processor taken many times over it runs slower.
func TestWatch(t *testing.T) {
	begun := time.Now()
	w := Start(t)
	time.Sleep(300 * time.Millisecond)
	if got, most := w.Elapsed(), time.Since(begun); got > most || got == 0 {
		t.Errorf("%v of %v", got, most)
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 32 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					work(1000)
				}
			}
		})
	}
	begun = time.Now()
	w = Start(t)
	time.Sleep(500 * time.Millisecond)
	got, most := w.Elapsed(), time.Since(begun)
	close(stop)
	others.Wait()
	if got > most/2 {
		t.Errorf("%v of %v with 32 others", got, most)
	}
}

// said catches what a test would fail with.
type said struct {
	testing.TB
	failed int
}

func (s *said) Helper()               {}
func (s *said) Errorf(string, ...any) { s.failed++ }

func TestWithin(t *testing.T) {
	calls := 0
	Within(t, time.Minute, func() string {
		if calls++; calls < 3 {
			return "not yet"
		}
		return ""
	})
	s := &said{TB: t}
	Within(s, 20*time.Millisecond, func() string { return "never" })
	if calls != 3 || s.failed != 1 {
		t.Errorf("%d calls, %d failures", calls, s.failed)
	}
}
