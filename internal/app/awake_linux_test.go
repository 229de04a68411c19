package app

import (
	"context"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestKeepAwake: the scheduler loses no processor to it, an idle process stays idle, and it leaves things as they were.
func TestKeepAwake(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done sync.WaitGroup
	done.Go(func() { keepAwake(ctx) })
	for runtime.GOMAXPROCS(0) != before+1 {
		runtime.Gosched()
	}
	begun, used := time.Now(), processTime(t)
	<-time.After(500 * time.Millisecond)
	if share := float64(processTime(t)-used) / float64(time.Since(begun)); share > 0.05 {
		t.Errorf("an idle process uses %.1f %% of a processor", 100*share)
	}
	cancel()
	done.Wait()
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("GOMAXPROCS is %d after it, was %d", n, before)
	}
}

// processTime is the processor time that this process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
