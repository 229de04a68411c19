package proxy

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// A model may be served by several pools whose windows differ, the small one first. A request goes to the first that it may fit;
// when its engine refuses it for length, which costs the engine nothing, it goes on to a pool with a larger window.

// choice is the pool that is asked.
func (x *exchange) choice() *pool.Choice { return &x.target[x.at] }

// first returns the choice to begin with: the first that the request does not certainly exceed, or the last of all.
func (x *exchange) first() int {
	if len(x.target) == 1 || x.req == nil {
		return 0
	}
	if x.picked.MediaBytes == 0 && x.req.Prompts == 1 { // else there is nothing to compare it with
		x.rec.Estimate, _ = x.target[0].Pool.Tokens(&x.picked)
	}
	if at := x.keeperAt(); at >= 0 {
		return at
	}
	largest := 0
	for i := range x.target {
		if !x.exceeds(&x.target[i]) {
			largest = i
			break
		}
		if x.target[i].Window > x.target[largest].Window {
			largest = i
		}
	}
	if largest > 0 {
		x.rec.Window = telemetry.WindowDirect
	}
	return largest
}

// keeperAt finds the choice whose pool keeps what the request continues, -1 for none.
func (x *exchange) keeperAt() int {
	if x.picked.Sticky == "" {
		return -1
	}
	at := x.p.sticky.find(x.req.PreviousResponse)
	for i := range x.target {
		if x.target[i].Pool == at.pool {
			return i
		}
	}
	return -1
}

// exceeds reports whether the request certainly does not fit c's window.
func (x *exchange) exceeds(c *pool.Choice) bool {
	if c.Window <= 0 || x.req.Prompts > 1 || x.req.Truncates || !x.fillsWindow() {
		return false
	}
	_, least := c.Pool.Tokens(&x.picked)
	return least >= c.Window || x.req.MaxTokens > c.Window || c.Pool.CountsOutput() && least+x.req.MaxTokens > c.Window
}

// fillsWindow reports whether the request is of an API that runs the prompt through the model.
func (x *exchange) fillsWindow() bool {
	switch x.api.Kind {
	case llmapi.Embeddings, llmapi.Pooling, llmapi.Classify, llmapi.Score, llmapi.Rerank:
		return true
	}
	return x.api.Generates
}

// larger returns the choice to go on to after the current one refused the request for length: the first later one with a
// larger window that the request likely fits, or the last with a larger one; -1 if there is none.
func (x *exchange) larger() int {
	found, most := -1, x.choice().Window
	if x.req != nil && x.req.PreviousResponse != "" {
		return -1 // what it continues is known in this pool only
	}
	for i := x.at + 1; i < len(x.target); i++ {
		c := &x.target[i]
		if c.Window > 0 && c.Window <= most || x.body == nil || !x.canRename(c) {
			continue
		}
		found = i
		if x.req == nil || c.Window == 0 {
			return i
		}
		if likely, _ := c.Pool.Tokens(&x.picked); likely+x.req.MaxTokens <= c.Window {
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
	c := x.choice()
	c.Pool.Refused(&x.picked, c.Window)
	x.rec.Window, x.rec.RefusedBy = telemetry.WindowResent, c.Pool.Name()
	err := x.moveTo(to, telemetry.OutcomeTooLong)
	if errors.Is(err, pool.ErrNoEndpoint) {
		e := errNoEndpoint()
		e.Message = "the prompt is too long for the pool that has endpoints, and no endpoint is available with a larger window; the request was not processed and may be sent again"
		err = e
	}
	return true, err
}

// moveTo gives up the current pool, whose last attempt ended with outcome, and books an endpoint of a choice or, if it has none, of a
// later one whose window is not smaller. The error is pool.ErrNoEndpoint if there is none, and what pickFrom says.
func (x *exchange) moveTo(to int, outcome string) error {
	x.endAttempt(outcome)
	x.result.Outcome = poolOutcomes[outcome]
	x.booking.Done(x.result)
	x.booked = false
	x.fresh()
	for least := x.target[to].Window; to < len(x.target); to++ {
		if w := x.target[to].Window; w > 0 && w < least {
			continue
		}
		if err := x.pickFrom(to); !errors.Is(err, pool.ErrNoEndpoint) {
			return err
		}
	}
	return pool.ErrNoEndpoint
}

// leave goes on to the next pool whose window is not smaller because no endpoint of the current one takes the request, of which
// nothing has run: they cannot be reached, or they leave, or they are busy and the pool may overflow. outcome is that of the last
// attempt. It returns false when there is no such pool; x is then without a booking only if there was one without an endpoint.
func (x *exchange) leave(k health.Kind, outcome string) bool {
	how := telemetry.WindowNoEndpoint
	if k == health.KindBusy {
		how = telemetry.WindowOverflow
	}
	c := x.choice()
	if k == health.KindDenied || k == health.KindBusy && !c.Pool.Overflows() || x.req != nil && x.req.PreviousResponse != "" {
		return false
	}
	for to := x.at + 1; to < len(x.target); to++ {
		if w := x.target[to].Window; w > 0 && w < c.Window || !x.canRename(&x.target[to]) {
			continue
		}
		if x.moveTo(to, outcome) != nil {
			return false
		}
		if x.rec.Window == "" {
			x.rec.Window = how
		}
		return true
	}
	return false
}

// teach tells the other pools of the model what one's engine counted.
func (x *exchange) teach() {
	if len(x.target) < 2 || x.req == nil || !x.result.HasUsage || x.outcome != telemetry.OutcomeOK {
		return
	}
	for i := range x.target {
		if i != x.at {
			x.target[i].Pool.Counted(&x.picked, x.result.Usage.Prompt)
		}
	}
}

// tooLongError is what the client is told when no pool takes the request: the last engine's message, in one shape whichever
// engine it was. Engines differ in status and body, and clients look for the code (OpenAI) or the words (Anthropic).
func (x *exchange) tooLongError(message string) *llmapi.Error {
	if x.rec.RefusedBy != "" {
		x.rec.Window = telemetry.WindowRefused
	}
	return llmapi.TooLong(message, x.choice().Window, x.api)
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
	body, _ := io.ReadAll(io.LimitReader(res.Body, refusalPeek))
	res.Body.Close()
	moved, err := x.moveUp()
	if moved || err != nil {
		return err
	}
	x.result.Status = res.StatusCode
	return x.tooLongError(refusalMessage(body))
}
