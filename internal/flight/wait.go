package flight

import (
	"context"
	"errors"
	"time"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
)

// light says which APIs take no room at an engine, no KV memory and no turn of its scheduler.
func light(k llmapi.Kind) bool {
	switch k {
	case llmapi.Response, llmapi.CountTokens, llmapi.Tokenize, llmapi.Detokenize, llmapi.Render, llmapi.Preflight:
		return true
	}
	return false
}

// Take books an endpoint of one choice, for which it waits if the pool lets it. Errors are pool.ErrNoEndpoint, *llmapi.Error,
// or the cause of the end of ctx.
func (f *Flight) Take(ctx context.Context, i int) error {
	err := f.pickFrom(i)
	if !errors.Is(err, pool.ErrFull) {
		return err
	}
	return f.Wait(ctx, f.Choice().Pool)
}

// Wait books an endpoint of a pool that has none to spare, as soon as it has. The wait ends with the request's limits, with the
// client, and with the gateway's drain, too.
func (f *Flight) Wait(ctx context.Context, p *pool.Pool) error {
	begun := time.Now()
	f.Rec.Pool = p.Name()
	f.Picked.Waited = f.Rec.Queued
	err, waited := p.Wait(&f.Booking, &f.Picked), time.Duration(0)
	if err == nil {
		err = f.await(ctx)
		waited = time.Since(begun)
		f.Rec.Queued += waited
		if m := f.Desk.Metrics; m != nil {
			m.Waited(f.Rec.Pool, waited)
		}
	}
	var shed *pool.ShedError
	switch {
	case err == nil:
		f.took(p, time.Since(begun)-waited)
	case errors.As(err, &shed):
		f.Rec.Cause = shed.Error()
		return errShed(shed)
	case errors.Is(err, pool.ErrNoEndpoint) && f.Rec.Queued > 0:
		return errHeld(f.Rec.Queued)
	}
	return err
}

// await waits until the booking has an endpoint.
func (f *Flight) await(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			f.Booking.Done(pool.Result{Outcome: pool.ClientCancelled}) // it never got to an engine
			return context.Cause(ctx)
		case <-f.Booking.Admitted():
		case <-timer.C:
		}
		again, err := f.Booking.Recheck()
		if again <= 0 {
			return err
		}
		timer.Reset(again)
	}
}
