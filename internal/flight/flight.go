// Package flight is one request in flight, whichever way it came to the gateway: which pools may serve what it asks for, the pick of
// an endpoint and the wait for one, what the endpoint's answer says of it, and its record. The HTTP data plane and the external
// processor stand on it, so that both decide alike.
//
// It does not read from clients or speak to endpoints, and it starts no goroutines. A Flight belongs to one request and to the
// goroutine that serves it; a Desk may be shared by any number.
package flight

import (
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/body"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Desk is what all requests of a data plane share. Directory and Memory are required.
type Desk struct {
	Directory *pool.Directory
	Metrics   *telemetry.Metrics // nil: nothing is counted
	Access    *telemetry.Access  // nil: no access records
	Memory    *Memory
}

// Memory is what is remembered from one request to another. It outlives changes of the configuration, and all data planes of a
// gateway have the same one. The zero value is ready.
type Memory struct {
	sticky   stickies
	failures failures
	requests atomic.Uint64 // so far
}

// Flight is one request from its arrival to the end of its answer. Begin readies it.
type Flight struct {
	Desk *Desk
	API  llmapi.API

	Scanner  *llmapi.Scanner // of the body; nil: there is none
	Req      *llmapi.Request // what the body says; nil when there is none
	Body     *body.Stored    // nil: there is none, or it was given up
	Coded    bool            // the body came with a Content-Encoding
	RawQuery string          // the client's
	Query    string          // in place of the client's; "": that one
	Rewrite  string          // model to ask for instead of the body's; "": that one
	Retried  string          // the client's own count of its retries; "" or "0": this is none

	Target  pool.Target
	At      int // the choice that is asked
	Picked  pool.Request
	Pool    *pool.Pool
	Booking pool.Booking
	Booked  bool
	Sent    bool // the request may have reached an endpoint

	Rec     telemetry.Record
	Result  pool.Result
	Outcome string // of telemetry; "" until it is known

	attempted bool // an attempt is open, not yet counted
}

// Begin starts the record of a request that has just arrived.
func (f *Flight) Begin(d *Desk, id, method string) {
	f.Desk = d
	f.Rec = telemetry.Record{ID: id, Method: method, Start: time.Now(), CachedTokens: -1}
	f.Picked.Number = d.Memory.requests.Add(1)
}

// Now is the time since the request arrived.
func (f *Flight) Now() time.Duration { return time.Since(f.Rec.Start) }

// poolOutcomes says what an outcome means for the endpoint.
var poolOutcomes = map[string]pool.Outcome{
	telemetry.OutcomeOK:              pool.OK,
	telemetry.OutcomeClientError:     pool.ClientError,
	telemetry.OutcomeTooLong:         pool.ClientError,
	telemetry.OutcomeClientCancelled: pool.ClientCancelled,
	telemetry.OutcomeUpstreamError:   pool.UpstreamError,
	telemetry.OutcomeNoEndpoint:      pool.UpstreamError,
	telemetry.OutcomeCut:             pool.Cut,
	telemetry.OutcomeTimeout:         pool.Timeout,
	telemetry.OutcomeShed:            pool.Shed,
}

// BeginAttempt notes the attempt that is about to be made.
func (f *Flight) BeginAttempt() {
	f.attempted = true
	f.Rec.Attempts++
	f.Rec.Endpoint = f.Booking.Endpoint().Name
}

// EndAttempt counts the attempt that is open, if one is.
func (f *Flight) EndAttempt(outcome string) {
	if !f.attempted {
		return
	}
	f.attempted = false
	if m := f.Desk.Metrics; m != nil {
		m.Attempt(f.Rec.Pool, f.Rec.Endpoint, outcome)
	}
}

// Release ends the booking, if there is one, with Outcome. ours says that the gateway itself ended the request, which says nothing of
// the endpoint.
func (f *Flight) Release(ours bool) {
	if !f.Booked {
		return
	}
	f.EndAttempt(f.Outcome)
	f.Result.Outcome = poolOutcomes[f.Outcome]
	if ours {
		f.Result.Outcome = pool.ClientCancelled
	}
	if f.API.Kind == llmapi.Preflight && f.Result.Outcome == pool.OK {
		f.Result.Outcome = pool.ClientError // no work was done from which to learn
	}
	f.Booking.Done(f.Result)
	f.teach()
}

// GiveUp ends the booking at the current endpoint, whose last attempt ended with outcome: another one is to be picked.
func (f *Flight) GiveUp(outcome string) {
	f.EndAttempt(outcome)
	f.Result.Outcome = poolOutcomes[outcome]
	f.Booking.Done(f.Result)
	f.Booked = false
}

// Record hands the finished record to metrics and access log.
func (f *Flight) Record() {
	r := &f.Rec
	r.Outcome = f.Outcome
	r.Duration = f.Now()
	r.Stream = f.Req != nil && f.Req.Stream
	if f.Result.HasUsage {
		u := &f.Result.Usage
		r.PromptTokens, r.OutputTokens = u.Prompt, u.Output
		if u.HasCached {
			r.CachedTokens = u.Cached
		}
	} else {
		r.OutputTokens, r.Estimate = f.Result.Tokens, 0 // there is nothing to compare it with
	}
	f.noteRetry()
	if m := f.Desk.Metrics; m != nil {
		m.Done(r)
	}
	r.Blocks = f.Picked.Blocks
	f.Desk.Access.Log(r)
}
