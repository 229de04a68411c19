package extproc

import (
	"math"
	"strconv"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// mutation is what a pick changes in the request's headers.
func (x *stream) mutation(pick string) *extprocv3.HeaderMutation {
	q := &x.head
	m := &extprocv3.HeaderMutation{RemoveHeaders: q.steering}
	set(m, headerDestination, pick)
	if x.Rec.ID != q.id {
		set(m, headerRequestID, x.Rec.ID)
	}
	if q.accept != "" && q.accept != "identity" {
		set(m, "accept-encoding", "identity") // a compressed stream could not be watched
	}
	if x.Query != "" {
		set(m, ":path", q.path+"?"+x.Query)
	}
	if key := x.Pool.APIKey(); key != "" {
		set(m, "authorization", "Bearer "+key)
		if q.key {
			m.RemoveHeaders = append(m.RemoveHeaders, "x-api-key")
		}
		if q.otherKey {
			m.RemoveHeaders = append(m.RemoveHeaders, "api-key")
		}
	}
	return m
}

// refuse answers the client in Envoy's place.
func (x *stream) refuse(e *llmapi.Error) error {
	x.Outcome, x.Rec.ErrorReason, x.Rec.Status = flight.OutcomeOf(e), e.Reason, e.Status
	if e.Reason == llmapi.ReasonShutdown { // our own end says nothing of an endpoint
		x.Outcome = telemetry.OutcomeCut
	}
	h := &extprocv3.HeaderMutation{}
	set(h, headerReason, e.Reason)
	set(h, headerDropped, e.Reason)
	if e.RetryAfter > 0 {
		set(h, "retry-after", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Allow != "" {
		set(h, "allow", e.Allow)
	}
	if x.Sent && wouldRetry(e.Status) { // it may have been processed: doing so again would be waste
		set(h, headerNoRetry, "false")
	}
	return x.answerNow(e.Status, e.Reason, h, e.Body(x.API.Dialect))
}

// answerNow sends an answer of our own, which ends the stream.
func (x *stream) answerNow(status int, why string, h *extprocv3.HeaderMutation, body []byte) error {
	set(h, "content-type", "application/json")
	set(h, headerID, x.Rec.ID)
	x.Rec.BytesOut = int64(len(body))
	x.over = true
	x.settle()
	return x.out.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)},
			Headers: h, Body: body, Details: "pointsman_" + why,
		}}})
}

// models answers the list of models, which is the gateway's and no endpoint's.
func (x *stream) models() error {
	body, err := flight.ModelList(x.set.Directory, x.API)
	if err != nil {
		return err
	}
	x.Outcome, x.Rec.Status = telemetry.OutcomeOK, 200
	return x.answerNow(200, "models", &extprocv3.HeaderMutation{}, body)
}

// wouldRetry reports whether the official clients send a request again by themselves after status.
func wouldRetry(status int) bool {
	return status >= 500 || status == 408 || status == 409 || status == 429
}
