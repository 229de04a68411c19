package flight

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
)

// Resolve finds the pools that serve what the request asks for and fills what a pick needs to know.
func (f *Flight) Resolve() *llmapi.Error {
	f.Picked.ID = f.Rec.ID
	if f.API.Kind == llmapi.Response {
		return f.resolveStored()
	}
	name := ""
	if q := f.Req; q != nil {
		name = q.Model
		f.Picked.Blocks, f.Picked.PromptBytes, f.Picked.TokenIDs = q.Blocks, q.PromptBytes, q.TokenIDs
		f.Picked.MediaBytes, f.Picked.WideBytes, f.Picked.SameBytes = q.MediaBytes, q.WideBytes, q.SameBytes
		f.Picked.MaxTokens, f.Picked.N = q.MaxTokens, q.N*max(1, q.Prompts)
		f.Picked.Priority, f.Picked.Whole = q.Priority, !q.Stream
		if q.PreviousResponse != "" {
			f.Picked.Sticky = f.Desk.Memory.sticky.find(q.PreviousResponse).endpoint
		}
	} else if f.API.Kind == llmapi.Realtime {
		var e *llmapi.Error
		if name, e = f.realtimeModel(); e != nil {
			return e
		}
	}
	if f.Rewrite != "" && (f.Req == nil || f.Req.HasModel) { // a model that is not there cannot be renamed
		name = f.Rewrite
	}
	if name == "" {
		return missingModel(f.Desk.Directory.List())
	}
	f.Rec.Model = name
	target, err := f.Desk.Directory.Resolve(name)
	if err != nil {
		return UnknownModel(name, err)
	}
	f.Target = target
	return nil
}

// rename makes the endpoint read the model name of c: only that value's bytes change. The prompt is then that of the other
// name, by which the engine's cache knows it.
func (f *Flight) rename(c *pool.Choice) error {
	said := f.said()
	served := cmp.Or(c.Served, f.Rec.Model)
	if f.Picked.Model == served || said == "" {
		f.Picked.Model = served
		return nil
	}
	renamed := f.Picked.Model != "" || served != said // not what the scanner made the chain for
	f.Picked.Model = served
	if f.Rec.Served = ""; served != f.Rec.Model {
		f.Rec.Served = served
	}
	switch {
	case !renamed:
	case f.Req == nil: // the name is in the query
		f.renameQuery(served)
	case !f.CanRename(c):
		return &llmapi.Error{Status: http.StatusUnsupportedMediaType, Reason: llmapi.ReasonBadForm, Param: "Content-Encoding",
			Message: fmt.Sprintf("model %q is an alias: its requests must be sent uncompressed", f.Req.Model)}
	default:
		f.Scanner.Rename(served)
		f.Picked.Blocks = f.Req.Blocks
		f.Body.Replace(0, 0, "")
		if served != said {
			f.Body.Replace(f.Req.ModelStart, f.Req.ModelEnd, string(f.Req.ModelLiteral(served)))
		}
	}
	return nil
}

// said is the model as the request itself names it.
func (f *Flight) said() string {
	if f.Req != nil {
		return f.Req.Model
	}
	return f.Rec.Model
}

// CanRename reports whether the request's body can be given c's name for the model.
func (f *Flight) CanRename(c *pool.Choice) bool {
	return cmp.Or(c.Served, f.Rec.Model) == f.said() || !f.Coded
}

// realtimeModel returns the model of a WebSocket: of the query, or the only one that is served. vLLM's clients name it
// in the first frame, too late for a pick.
func (f *Flight) realtimeModel() (string, *llmapi.Error) {
	name, times := "", 0
	for part := range strings.SplitSeq(f.RawQuery, "&") {
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
	if len(name) > llmapi.MaxModel {
		return "", &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadType, Param: "model", Message: "the model's name is too long"}
	}
	if name == "" {
		if list := f.Desk.Directory.List(); len(list) == 1 {
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
func (f *Flight) renameQuery(served string) {
	parts := strings.Split(f.RawQuery, "&")
	for i, part := range parts {
		if _, ok := modelParameter(part); ok {
			parts[i] = "model=" + url.QueryEscape(served)
		}
	}
	f.Query = strings.Join(parts, "&")
}

// resolveStored finds the endpoint that keeps a stored response.
func (f *Flight) resolveStored() *llmapi.Error {
	at := f.Desk.Memory.sticky.find(f.API.ResponseID)
	for _, p := range f.Desk.Directory.Pools() {
		if p == at.pool {
			f.Target = pool.Target{{Pool: p}}
			f.Picked.Sticky = at.endpoint
			return nil
		}
	}
	return &llmapi.Error{Status: http.StatusNotFound, Reason: llmapi.ReasonNotFound, Type: "invalid_request_error",
		Message: fmt.Sprintf("response %.128q is not known here; model servers keep responses for a while and in memory only", f.API.ResponseID)}
}

func missingModel(known []pool.Model) *llmapi.Error {
	msg := "the request names no model"
	if len(known) == 1 {
		msg += fmt.Sprintf("; this gateway serves %q", known[0].ID)
	}
	return &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonMissingModel, Type: "invalid_request_error", Code: "missing_model", Param: "model", Message: msg}
}

// UnknownModel is what a client is told of a model that nobody serves: 404 with the name that may be meant. err is that of
// pool.Directory.Resolve.
func UnknownModel(name string, err error) *llmapi.Error {
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
