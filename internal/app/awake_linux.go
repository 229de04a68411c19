package app

import (
	"context"
	"runtime"
	"syscall"
	"time"
)

// awakeNap is how long one system call of keepAwake lasts. The scheduler takes a processor back from a call of 10 ms.
const awakeNap = 5 * time.Millisecond

// keepAwake keeps one processor of Go's scheduler in short system calls until ctx ends, and gives the scheduler one more in
// its place.
//
// When all its processors are idle the scheduler's monitor thread sleeps too, and the next thread that has work must wake it:
// two switches of threads that do nothing else. A gateway on which streams run is in that state after nearly every event, and
// they were a third of its processor time. A processor that is in a system call is not idle. It costs 200 wake-ups a second.
func keepAwake(ctx context.Context) {
	n := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(n + 1)
	defer runtime.GOMAXPROCS(n)
	for ctx.Err() == nil {
		nap := syscall.NsecToTimespec(awakeNap.Nanoseconds())
		_ = syscall.Nanosleep(&nap, nil) // ended early by a signal it is followed by the next
		runtime.Gosched()                // else the monitor takes the processor from a goroutine that has kept it for long
	}
}
