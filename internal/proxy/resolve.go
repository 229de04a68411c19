package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
)

// resolve finds the pools that serve what the request asks for and fills what a pick needs to know.
func (x *exchange) resolve() *llmapi.Error {
	x.picked.ID = x.rec.ID
	if x.api.Kind == llmapi.Response {
		return x.resolveStored()
	}
	name := ""
	if q := x.req; q != nil {
		name = q.Model
		x.picked.Blocks, x.picked.PromptBytes, x.picked.TokenIDs = q.Blocks, q.PromptBytes, q.TokenIDs
		x.picked.MediaBytes, x.picked.WideBytes, x.picked.SameBytes = q.MediaBytes, q.WideBytes, q.SameBytes
		x.picked.MaxTokens, x.picked.N = q.MaxTokens, q.N*max(1, q.Prompts)
		if q.PreviousResponse != "" {
			x.picked.Sticky = x.p.sticky.find(q.PreviousResponse).endpoint
		}
	} else if x.api.Kind == llmapi.Realtime {
		var e *llmapi.Error
		if name, e = x.realtimeModel(); e != nil {
			return e
		}
	}
	if name == "" {
		return missingModel(x.p.cfg.Directory.List())
	}
	x.rec.Model = name
	target, err := x.p.cfg.Directory.Resolve(name)
	if err != nil {
		return unknownModel(name, err)
	}
	x.target = target
	x.limit(name)
	return nil
}

// limit sets the limits of a model that has its own.
func (x *exchange) limit(model string) {
	own, ok := x.p.cfg.Models[model]
	if !ok {
		return
	}
	own = own.withDefaults()
	x.watch.limit(own)
	x.limitText = secondsText(own.Limit)
	x.ownHeaders()
}

// secondsText is a limit as headerLimit says it.
func secondsText(d time.Duration) []string {
	return []string{strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}
}

// rename makes the endpoint read the model name of c: only that value's bytes change. The prompt is then that of the other
// name, by which the engine's cache knows it.
func (x *exchange) rename(c *pool.Choice) error {
	said := x.rec.Model
	served := cmp.Or(c.Served, said)
	if x.picked.Model == served || said == "" {
		x.picked.Model = served
		return nil
	}
	renamed := x.picked.Model != "" || served != said // not what the scanner made the chain for
	x.picked.Model = served
	if x.rec.Served = ""; served != said {
		x.rec.Served = served
	}
	switch {
	case !renamed:
	case x.req == nil: // the name is in the query
		x.renameQuery(served)
	case !x.canRename(c):
		return &llmapi.Error{Status: http.StatusUnsupportedMediaType, Reason: llmapi.ReasonBadForm, Param: "Content-Encoding",
			Message: fmt.Sprintf("model %q is an alias: its requests must be sent uncompressed", x.req.Model)}
	default:
		x.scanner.Rename(served)
		x.picked.Blocks = x.req.Blocks
		x.body.edit = edit{}
		if served != said {
			x.body.edit = edit{from: x.req.ModelStart, to: x.req.ModelEnd, with: string(x.req.ModelLiteral(served))}
		}
	}
	return nil
}

// canRename reports whether the request's body can be given c's name for the model.
func (x *exchange) canRename(c *pool.Choice) bool {
	return cmp.Or(c.Served, x.rec.Model) == x.rec.Model || x.in.Header.Get("Content-Encoding") == ""
}

// realtimeModel returns the model of a WebSocket: of the query, or the only one that is served. vLLM's clients name it
// in the first frame, too late for a pick.
func (x *exchange) realtimeModel() (string, *llmapi.Error) {
	name, times := "", 0
	for part := range strings.SplitSeq(x.in.URL.RawQuery, "&") {
		value, ok := modelParameter(part)
		if !ok {
			continue
		}
		if times++; times > 1 {
			return "", &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonDuplicateKey, Param: "model", Message: `the query has "model" twice`}
		}
		var err error
		if name, err = url.QueryUnescape(value); err != nil {
			return "", &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadType, Param: "model", Message: `the query's "model" is not properly escaped`}
		}
	}
	if name == "" {
		if list := x.p.cfg.Directory.List(); len(list) == 1 {
			return list[0].ID, nil
		}
	}
	return name, nil
}

// modelParameter returns the escaped value of part if that is the query parameter of the model, however its name is spelt.
func modelParameter(part string) (string, bool) {
	key, value, _ := strings.Cut(part, "=")
	key, err := url.QueryUnescape(key)
	return value, err == nil && key == "model"
}

// renameQuery replaces the model's value in the query and leaves every other byte of it.
func (x *exchange) renameQuery(served string) {
	parts := strings.Split(x.in.URL.RawQuery, "&")
	for i, part := range parts {
		if _, ok := modelParameter(part); ok {
			parts[i] = "model=" + url.QueryEscape(served)
		}
	}
	x.query = strings.Join(parts, "&")
}

// resolveStored finds the endpoint that keeps a stored response.
func (x *exchange) resolveStored() *llmapi.Error {
	at := x.p.sticky.find(x.api.ResponseID)
	for _, p := range x.p.cfg.Directory.Pools() {
		if p == at.pool {
			x.target = pool.Target{{Pool: p}}
			x.picked.Sticky = at.endpoint
			return nil
		}
	}
	return &llmapi.Error{Status: http.StatusNotFound, Reason: llmapi.ReasonNotFound, Type: "invalid_request_error",
		Message: fmt.Sprintf("response %.128q is not known here; model servers keep responses for a while and in memory only", x.api.ResponseID)}
}

func missingModel(known []pool.Model) *llmapi.Error {
	msg := "the request names no model"
	if len(known) == 1 {
		msg += fmt.Sprintf("; this gateway serves %q", known[0].ID)
	}
	return &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonMissingModel, Type: "invalid_request_error", Code: "missing_model", Param: "model", Message: msg}
}

func unknownModel(name string, err error) *llmapi.Error {
	msg := fmt.Sprintf("The model %s does not exist.", quoted(name))
	var unknown *pool.UnknownModelError
	if errors.As(err, &unknown) {
		switch {
		case unknown.Near != "":
			msg += fmt.Sprintf(" Did you mean %s?", quoted(unknown.Near))
		case len(unknown.Known) > 0 && len(unknown.Known) <= 8:
			msg += " Served are: " + strings.Join(unknown.Known, ", ") + "."
		}
	}
	return &llmapi.Error{Status: http.StatusNotFound, Reason: llmapi.ReasonUnknownModel, Type: "invalid_request_error", Code: "model_not_found", Param: "model", Message: msg}
}

// quoted puts a name from a request into a message, bounded.
func quoted(name string) string {
	if len(name) > 128 {
		name = strings.ToValidUTF8(name[:128], "") + "..."
	}
	return "`" + name + "`"
}
