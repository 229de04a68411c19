package proxy

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// A model may be served by several pools whose windows differ, the small one first. A request goes to the first that it may fit;
// when its engine refuses it for length, which costs the engine nothing, it goes on to a pool with a larger window.

// larger returns the choice to go on to after the current one refused the request for length: the first later one with a
// larger window that the request likely fits, or the last with a larger one; -1 if there is none.
func (x *exchange) larger() int {
	found, most := -1, x.Choice().Window
	if x.Req != nil && x.Req.PreviousResponse != "" {
		return -1 // what it continues is known in this pool only
	}
	for i := x.At + 1; i < len(x.Target); i++ {
		c := &x.Target[i]
		if c.Window > 0 && c.Window <= most || x.Body == nil || !x.CanRename(c) {
			continue
		}
		found = i
		if x.Req == nil || c.Window == 0 {
			return i
		}
		if likely, _ := c.Pool.Tokens(&x.Picked); likely+x.Req.MaxTokens <= c.Window {
			return i
		}
	}
	return found
}

// moveUp gives up the current pool, which refused the request for length, and books an endpoint of a larger one. It returns false when
// there is none that is larger. The error means that there is one and nobody to ask in it.
func (x *exchange) moveUp() (bool, error) {
	to := x.larger()
	if to < 0 {
		return false, nil
	}
	c := x.Choice()
	c.Pool.Refused(&x.Picked, c.Window)
	x.Rec.Window, x.Rec.RefusedBy = telemetry.WindowResent, c.Pool.Name()
	err := x.moveTo(to, telemetry.OutcomeTooLong)
	if errors.Is(err, pool.ErrNoEndpoint) {
		e := flight.NoEndpoint()
		e.Message = "the prompt is too long for the pool that has endpoints, and no endpoint is available with a larger window; the request was not processed and may be sent again"
		err = e
	}
	return true, err
}

// moveTo gives up the current pool, whose last attempt ended with outcome, and books an endpoint of a choice or, if it has none, of a
// later one whose window is not smaller. The error is pool.ErrNoEndpoint if there is none, and what take says.
func (x *exchange) moveTo(to int, outcome string) error {
	x.GiveUp(outcome)
	x.fresh()
	for least := x.Target[to].Window; to < len(x.Target); to++ {
		if w := x.Target[to].Window; w > 0 && w < least {
			continue
		}
		if err := x.waited(x.Take(x.ctx, to)); !errors.Is(err, pool.ErrNoEndpoint) {
			return err
		}
	}
	return pool.ErrNoEndpoint
}

// leave goes on to the next pool whose window is not smaller because no endpoint of the current one takes the request, of which
// nothing has run: they cannot be reached, or they leave, or they are busy and the pool may overflow. outcome is that of the last
// attempt. It returns false when there is no such pool; x is then without a booking only if there was one without an endpoint. The
// error says why the wait for an endpoint there ended.
func (x *exchange) leave(k health.Kind, outcome string) (bool, error) {
	how := telemetry.WindowNoEndpoint
	if k == health.KindBusy {
		how = telemetry.WindowOverflow
	}
	c := x.Choice()
	if k == health.KindDenied || k == health.KindBusy && !c.Pool.Overflows() || x.Req != nil && x.Req.PreviousResponse != "" {
		return false, nil
	}
	for to := x.At + 1; to < len(x.Target); to++ {
		if w := x.Target[to].Window; w > 0 && w < c.Window || !x.CanRename(&x.Target[to]) {
			continue
		}
		err := x.moveTo(to, outcome)
		if errors.Is(err, pool.ErrNoEndpoint) {
			return false, nil
		}
		if err == nil && x.Rec.Window == "" {
			x.Rec.Window = how
		}
		return err == nil, err
	}
	return false, nil
}

// tooLongError is what the client is told when no pool takes the request: the last engine's message, in one shape whichever
// engine it was. Engines differ in status and body, and clients look for the code (OpenAI) or the words (Anthropic).
func (x *exchange) tooLongError(message string) *llmapi.Error {
	if x.Rec.RefusedBy != "" {
		x.Rec.Window = telemetry.WindowRefused
	}
	return llmapi.TooLong(message, x.Choice().Window, x.API)
}

// refusalMessage takes an engine's own words out of the body of its error: nested, flat, or as bare text.
func refusalMessage(body []byte) string {
	var flat struct {
		Message string          `json:"message"`
		Detail  string          `json:"detail"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &flat) != nil {
		text := strings.TrimSpace(strings.ToValidUTF8(string(body), ""))
		if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "<") {
			return ""
		}
		return text[:min(len(text), maxRefusalText)]
	}
	var nested struct {
		Message string `json:"message"`
	}
	var bare string
	switch {
	case json.Unmarshal(flat.Error, &nested) == nil && nested.Message != "":
		return nested.Message
	case json.Unmarshal(flat.Error, &bare) == nil && bare != "":
		return bare
	case flat.Message != "":
		return flat.Message
	}
	return flat.Detail
}

const maxRefusalText = 4 << 10

// refusedForLength goes on to a larger pool after res, or returns what to tell the client.
func (x *exchange) refusedForLength(res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, flight.RefusalPeek))
	res.Body.Close()
	moved, err := x.moveUp()
	if moved || err != nil {
		return err
	}
	x.Result.Status = res.StatusCode
	return x.tooLongError(refusalMessage(body))
}
