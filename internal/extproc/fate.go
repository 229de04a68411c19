package extproc

import (
	"slices"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman.dev/pointsman/internal/telemetry"
)

// What Envoy tells with the answer's headers, if its response_attributes ask for it.
const (
	attributes  = "envoy.filters.http.ext_proc"
	keyAddress  = "upstream.address"
	keyOwn      = "upstream.local_address" // there is one if there was a connection
	keyAttempts = "upstream.request_attempt_count"
	keyDetails  = "response.code_details"

	viaUpstream = "via_upstream"
)

// fate is what became of a request in Envoy's hands when its answer begins.
type fate struct {
	at       string // the endpoint that Envoy chose last; "": it does not say
	attempts int    // how often it tried to send the request; 0: it does not say, or never
	details  string // whose answer it is; "": it does not say
	sent     bool   // of an answer of Envoy's own: an endpoint may have the request
}

// readFate reads it from the message with the answer's headers.
func readFate(in *extprocv3.ProcessingRequest) fate {
	a := in.GetAttributes()[attributes].GetFields()
	f := fate{at: text(a, keyAddress), attempts: int(a[keyAttempts].GetNumberValue()), details: text(a, keyDetails), sent: text(a, keyOwn) != ""}
	if v := text(in.GetMetadataContext().GetFilterMetadata()[metaPick].GetFields(), keyServed); v != "" {
		f.at = strings.TrimSpace(v)
	}
	return f
}

func text(fields map[string]*structpb.Value, key string) string { return fields[key].GetStringValue() }

// own reports whether Envoy itself made the answer.
func (f *fate) own() bool { return f.details != "" && f.details != viaUpstream }

// unreached reports whether Envoy made it because the endpoint took no connection.
func (f *fate) unreached() bool {
	return f.own() && !f.sent && (strings.Contains(f.details, "connection_timeout") ||
		strings.Contains(f.details, "connection_failure") && !strings.Contains(f.details, "local_connection_failure"))
}

// Envoy's own answers with status 503, if they are not changed by its configuration.
const (
	lost  = "upstream connect error or disconnect/reset before headers"
	nohow = "no healthy upstream"
)

// readBody finds out from the body of a 503 what Envoy was not asked to say in attributes.
func (f *fate) readBody(status int, body []byte) {
	if f.details != "" || status != 503 {
		return
	}
	reason, reset := strings.CutPrefix(string(body), lost)
	switch {
	case reset:
		f.details = strings.ReplaceAll(strings.TrimPrefix(reason, ". "), " ", "_")
		f.sent = !strings.Contains(f.details, "overflow") && !strings.Contains(f.details, "connection_failure") && !strings.Contains(f.details, "connection_timeout")
	case string(body) == nohow:
		f.details = "no_healthy_upstream"
	}
}

// follow moves the booking to where the request went. An endpoint that stands before that one in the pick has failed only if it was tried:
// one that is not in its cluster Envoy passes over.
func (x *stream) follow() {
	f := &x.fate
	if f.at == "" || f.at == x.picks[0] {
		return
	}
	i := slices.Index(x.picks, f.at)
	if i > 0 && f.attempts > i {
		for _, next := range x.picks[1 : i+1] {
			x.EndAttempt(telemetry.OutcomeUpstreamError)
			if x.Booking.Moved(next, true) {
				x.BeginAttempt()
			}
		}
		return
	}
	if x.Booking.Moved(f.at, false) {
		x.Rec.Endpoint = f.at
	} else {
		x.innocent = true
	}
	switch {
	case i < 0 && f.attempts <= 1: // with more it has tried all that were picked, and then what it has
		x.srv.misled.Do(func() {
			x.set.Log.Warn("requests go elsewhere than they are picked for: look at the override_host policy of Envoy's cluster, and at metadata_options.receiving_namespaces",
				"picked", x.picks[0], "served", f.at)
		})
	case i > 0 && f.attempts == 1:
		x.srv.unknown.Do(func() {
			x.set.Log.Warn("Envoy passes over an endpoint that was picked: it is not in Envoy's cluster, or not healthy there", "picked", x.picks[0], "served", f.at)
		})
	}
}
