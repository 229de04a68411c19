package simcmd

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// sweep runs every configuration on as many cores as there are, each run on one, and returns the results in the order of cfgs. While
// it takes long it says on w how far it is. It returns the error of the first run that failed, or that of ctx.
func sweep(ctx context.Context, cfgs []sim.Config, w io.Writer) ([]*sim.Result, error) {
	out, errs := make([]*sim.Result, len(cfgs)), make([]error, len(cfgs))
	next, done := make(chan int), make(chan struct{})
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(cfgs)) {
		wg.Go(func() {
			for i := range next {
				c := cfgs[i]
				c.Progress = func(time.Duration) error { return ctx.Err() }
				out[i], errs[i] = sim.Run(c)
				done <- struct{}{}
			}
		})
	}
	go func() {
		defer close(done)
		for i := range cfgs {
			next <- i
		}
		close(next)
		wg.Wait()
	}()
	p := progress{w: w, total: len(cfgs), start: time.Now()}
	for range done {
		p.step()
	}
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// progress says how far a long sweep is, every few seconds.
type progress struct {
	w           io.Writer
	total, done int
	start, said time.Time
}

const sayEvery = 5 * time.Second

func (p *progress) step() {
	p.done++
	now := time.Now()
	if p.said.IsZero() {
		p.said = p.start
	}
	if now.Sub(p.said) < sayEvery || p.done == p.total {
		return
	}
	p.said = now
	left := now.Sub(p.start) / time.Duration(p.done) * time.Duration(p.total-p.done)
	fmt.Fprintf(p.w, "%d of %d runs, about %s left\n", p.done, p.total, left.Round(time.Second))
}
