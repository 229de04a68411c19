package flight

import (
	"context"
	"errors"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Pick books an endpoint of the first pool that the request may fit and that has one. A pool that is full is passed over only
// if it may overflow, and only while a later one is not full. Otherwise the request waits there, if the pool has a queue.
func (f *Flight) Pick(ctx context.Context) error {
	f.Picked.Light = light(f.API.Kind)
	first := f.first()
	full, last := -1, error(NoEndpoint())
	for i := first; i < len(f.Target); i++ {
		c := &f.Target[i]
		if i > first && c.Window > 0 && c.Window < f.Target[first].Window {
			continue // never to a smaller window
		}
		f.Picked.Spare = full >= 0 || i < len(f.Target)-1 && c.Pool.Overflows()
		err := f.pickFrom(i)
		switch {
		case err == nil:
			f.notePool(full >= 0, i > first)
			return nil
		case errors.Is(err, pool.ErrFull):
			if full < 0 {
				full = i
			}
			if !c.Pool.Overflows() {
				return f.settleFor(ctx, full, last)
			}
		case !errors.Is(err, pool.ErrNoEndpoint):
			last = err
		}
	}
	if full < 0 {
		return last
	}
	return f.settleFor(ctx, full, last)
}

// settleFor books an endpoint of a choice that is full, or waits for one. If it has none at all the error is that of the others.
func (f *Flight) settleFor(ctx context.Context, full int, last error) error {
	f.Picked.Spare = false
	if err := f.Take(ctx, full); !errors.Is(err, pool.ErrNoEndpoint) {
		return err
	}
	return last
}

// notePool records why the pool that was picked from is not the first.
func (f *Flight) notePool(full, later bool) {
	switch {
	case full:
		f.Rec.Window = telemetry.WindowOverflow
	case later && f.Rec.Window == "":
		f.Rec.Window = telemetry.WindowNoEndpoint
	}
}

// pickFrom books an endpoint of one choice, whose name for the model the request then has.
func (f *Flight) pickFrom(i int) error {
	begun := time.Now()
	f.At = i
	c := f.Choice()
	if err := f.rename(c); err != nil {
		return err
	}
	if err := c.Pool.PickInto(&f.Booking, &f.Picked); err != nil {
		return err
	}
	f.took(c.Pool, time.Since(begun))
	return nil
}

// took records that an endpoint of p is booked, which was decided in so long.
func (f *Flight) took(p *pool.Pool, pick time.Duration) {
	f.Booked, f.Pool, f.Picked.Spare = true, p, false
	f.Rec.Pool, f.Rec.PickTime = p.Name(), pick
	f.notePick(pick)
}

// notePick records the pick that was just made.
func (f *Flight) notePick(took time.Duration) {
	f.Rec.PickReason = f.Booking.Reason().String()
	f.Rec.PredictedHit, f.Rec.PromptTokens = f.Booking.PredictedHit(), f.Booking.PromptTokens()
	if m := f.Desk.Metrics; m != nil {
		m.Pick(f.Rec.Pool, f.Rec.PickReason, took)
	}
}

// Repick moves the booking to an endpoint that was not tried, because of k; outcome is that of the attempt it gives up.
func (f *Flight) Repick(k health.Kind, outcome string) bool {
	begun := time.Now()
	if !f.Booking.Repick(k) {
		return false
	}
	f.EndAttempt(outcome)
	f.notePick(time.Since(begun))
	return true
}
