package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Names of headers, in Envoy's lower case.
const (
	headerDestination = "x-gateway-destination-endpoint" // the pick; also its key in the metadata
	headerModel       = "x-gateway-model-name"           // set by a filter in front that reads bodies
	headerServed      = "x-conformance-test-served-endpoint"
	headerSelection   = "test-epp-endpoint-selection"

	headerReason    = "x-pointsman-reason"
	headerDropped   = "x-llm-d-request-dropped-reason"
	headerID        = "x-pointsman-request-id"
	headerEndpoint  = "x-pointsman-endpoint"
	headerPick      = "x-pointsman-pick"
	headerNoRetry   = "x-should-retry"
	headerRequestID = "x-request-id"
)

// head is what is read of a request's headers.
type head struct {
	method, path, query         string
	contentType, coding, accept string
	id                          string
	length                      int64 // announced; -1: none
	retried                     string
	rewrite, model              string
	selection                   string
	origin, askedMethod         string
	steering                    []string // names of headers that are not a client's to set, but for the destination
	key, otherKey               bool     // x-api-key, api-key
}

// value is what a header says. Envoy sends raw bytes, others may send text.
func value(h *corev3.HeaderValue) string {
	if len(h.RawValue) > 0 {
		return string(h.RawValue)
	}
	return h.Value
}

// read takes what matters of a request's headers.
func (q *head) read(h *corev3.HeaderMap, steers func(string) bool) {
	q.length = -1
	for _, hv := range h.GetHeaders() {
		switch name := hv.GetKey(); name {
		case ":method":
			q.method = value(hv)
		case ":path":
			q.path, q.query, _ = strings.Cut(value(hv), "?")
		case "content-type":
			q.contentType = value(hv)
		case "content-encoding":
			if q.coding != "" {
				q.coding += ","
			}
			q.coding += value(hv)
		case "content-length":
			if n, err := strconv.ParseInt(value(hv), 10, 64); err == nil {
				q.length = n
			}
		case headerRequestID:
			q.id = value(hv)
		default:
			if !q.readClient(hv) {
				q.readAlias(hv, steers)
			}
		}
	}
}

// readClient takes what clients say of themselves.
func (q *head) readClient(hv *corev3.HeaderValue) bool {
	switch hv.GetKey() {
	case "accept-encoding":
		q.accept = value(hv)
	case "x-stainless-retry-count":
		q.retried = value(hv)
	case "origin":
		q.origin = value(hv)
	case "access-control-request-method":
		q.askedMethod = value(hv)
	case "x-api-key":
		q.key = true
	case "api-key":
		q.otherKey = true
	default:
		return false
	}
	return true
}

// readAlias takes the headers that gateways and pickers have several names for, and notes those that steer.
func (q *head) readAlias(hv *corev3.HeaderValue, steers func(string) bool) {
	switch name := hv.GetKey(); name {
	case headerDestination:
	case headerSelection:
		q.selection = value(hv)
	case "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite":
		q.rewrite = value(hv)
	case headerModel:
		q.model = value(hv)
	case "x-gateway-inference-objective", "x-gateway-inference-fairness-id":
		return // not ours to judge, and no engine obeys them
	default:
		if steers(name) {
			q.steering = append(q.steering, name)
		}
	}
}
