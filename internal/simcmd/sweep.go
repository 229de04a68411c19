package simcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// sweep runs every configuration on as many cores as there are, each run on one, and returns the results in the order of cfgs. While
// it takes long it says on w how far it is. It returns the error of the first run that failed. A signal to end, or the end of ctx, ends
// the runs under way: then the error is interrupted, and the results of those that had ended are there, the others nil.
func sweep(ctx context.Context, cfgs []sim.Config, w io.Writer) ([]*sim.Result, error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second signal does what it always does
	return newProgress(w, cfgs).sweep(ctx, cfgs)
}

// interrupted is the error of a sweep that was ended before its time.
type interrupted struct{ cause error }

func (i interrupted) Error() string { return "interrupted" }
func (i interrupted) Unwrap() error { return i.cause }

// exitCode is that of a command which ends with err; 130 is what shells give a program that Ctrl-C ended.
func exitCode(err error) int {
	if errors.As(err, new(interrupted)) {
		return 130
	}
	return 1
}

// ended reports whether the runs of one row came to their end.
func ended(results []*sim.Result) bool { return !slices.Contains(results, nil) }

func (p *progress) sweep(ctx context.Context, cfgs []sim.Config) ([]*sim.Result, error) {
	out, errs := make([]*sim.Result, len(cfgs)), make([]error, len(cfgs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(cfgs)) {
		wg.Go(func() {
			for i := range next {
				c := cfgs[i]
				c.Progress = func(now time.Duration) error {
					p.at[i].Store(int64(now))
					if watch := cfgs[i].Progress; watch != nil {
						if err := watch(now); err != nil {
							return err
						}
					}
					return ctx.Err()
				}
				if errs[i] = ctx.Err(); errs[i] == nil {
					out[i], errs[i] = sim.Run(c)
				}
				p.at[i].Store(int64(p.length[i]))
				p.done.Add(1)
			}
		})
	}
	finished, said := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(said)
		p.watch(finished)
	}()
	for i := range cfgs {
		next <- i
	}
	close(next)
	wg.Wait()
	close(finished)
	<-said
	stop := ctx.Err()
	for _, err := range errs {
		if err != nil && (stop == nil || !errors.Is(err, stop)) {
			return nil, err
		}
	}
	if slices.Contains(out, nil) {
		return out, interrupted{stop}
	}
	return out, nil
}

// progress says how far a long sweep is: on a terminal in one line that changes, else in a line now and then.
type progress struct {
	w        io.Writer
	terminal bool
	start    time.Time
	length   []time.Duration // of each run
	at       []atomic.Int64  // virtual time of each
	done     atomic.Int64    // runs
	shown    bool
}

// When the first word is said, and how often.
const (
	patience     = time.Second
	refreshEvery = 200 * time.Millisecond
	lineEvery    = 5 * time.Second
)

func newProgress(w io.Writer, cfgs []sim.Config) *progress {
	p := &progress{w: w, start: time.Now(), at: make([]atomic.Int64, len(cfgs))}
	for i := range cfgs {
		p.length = append(p.length, cmp.Or(cfgs[i].Length, 420*time.Second))
	}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return p
}

// watch says how far it is until everything is finished.
func (p *progress) watch(finished <-chan struct{}) {
	every := lineEvery
	if p.terminal {
		every = refreshEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			if p.terminal && p.shown {
				fmt.Fprint(p.w, "\r\x1b[K") // the result takes its place
			}
			return
		case now := <-tick.C:
			p.say(now)
		}
	}
}

func (p *progress) say(now time.Time) {
	switch {
	case now.Sub(p.start) < patience:
	case p.terminal:
		fmt.Fprintf(p.w, "\r%s\x1b[K", p.line(now))
		p.shown = true
	default:
		fmt.Fprintln(p.w, p.line(now))
	}
}

// line is how far it is: in virtual time, at which rate, and how long the rest takes at that. What comes after the last arrival is short and
// counts as nothing.
func (p *progress) line(now time.Time) string {
	var at, all time.Duration
	for i, length := range p.length {
		at, all = at+min(time.Duration(p.at[i].Load()), length), all+length
	}
	took := now.Sub(p.start)
	s := ""
	if n := len(p.length); n > 1 {
		s = fmt.Sprintf("%d of %d runs, ", p.done.Load(), n)
	}
	s += fmt.Sprintf("%.0f %% of %v", 100*at.Seconds()/all.Seconds(), all.Round(time.Second))
	if at > 0 {
		left := time.Duration(float64(took) * (all - at).Seconds() / at.Seconds())
		s += fmt.Sprintf(", %s times as fast as real, about %v left", rate(at.Seconds()/took.Seconds()), left.Round(time.Second))
	}
	return s
}

// rate has two digits that count.
func rate(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
