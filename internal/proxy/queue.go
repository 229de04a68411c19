package proxy

import (
	"errors"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// waited turns the end of a wait for an endpoint that the end of the exchange ended into what is told of it: no engine has seen
// the request. When a drain's time is over, the requests that it cuts make room; it is not for those that wait.
func (x *exchange) waited(err error) error {
	var own *llmapi.Error
	if err == nil && x.Rec.Queued > 0 && x.p.cutting.Load() {
		return unprocessed(shutdown())
	}
	if err == nil || x.ctx.Err() == nil || errors.As(err, &own) || errors.Is(err, pool.ErrNoEndpoint) {
		return err
	}
	err = x.cancelled()
	var c *cutCause
	if errors.As(err, &c) {
		return unprocessed(c)
	}
	return err
}

// unprocessed is c for a request that waited in the queue.
func unprocessed(c *cutCause) *cutCause {
	own := *c
	own.message = "the request waited in the gateway's queue and was not processed: " + c.message
	return &own
}

// unreachable is for a request that no endpoint of its pool could be reached for. It waits for one to come back, if the pool holds
// requests, or goes on to another pool, in the order in which a pick would.
func (x *exchange) unreachable() error {
	holds := x.Pool.Holds(x.Rec.Queued)
	if !holds || x.Pool.Overflows() {
		if moved, err := x.leave(health.KindConnect, telemetry.OutcomeUpstreamError); moved || err != nil {
			return err
		}
	}
	if !holds || !x.Booked {
		return flight.Unreachable()
	}
	x.GiveUp(telemetry.OutcomeUpstreamError)
	x.fresh()
	if err := x.waited(x.Wait(x.ctx, x.Pool)); !errors.Is(err, pool.ErrNoEndpoint) {
		return err
	}
	return flight.Unreachable()
}
