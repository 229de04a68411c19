package proxy

import (
	"errors"
	"fmt"
	"net/http"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// serveModels answers GET and HEAD of /v1/models and /v1/models/{id} from what the endpoints list.
func (x *exchange) serveModels() {
	body, err := flight.ModelList(x.p.cfg.Directory, x.API)
	var e *llmapi.Error
	if errors.As(err, &e) {
		x.refuse(e)
		return
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", fmt.Sprint(len(body)))
	x.Rec.Status = http.StatusOK
	x.Outcome = telemetry.OutcomeOK
	if x.in.Method != http.MethodHead {
		x.answer.bytes = int64(len(body))
		_, _ = x.w.Write(body) // a client that left has nothing to be told
	}
}
