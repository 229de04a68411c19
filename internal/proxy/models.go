package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// modelCard is one entry of /v1/models, in the shape of OpenAI with the window that vLLM adds.
type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root,omitempty"`
	Parent      string `json:"parent,omitempty"`
	MaxModelLen int    `json:"max_model_len,omitempty"`
}

func card(m pool.Model) modelCard {
	return modelCard{ID: m.ID, Object: "model", Created: m.Created, OwnedBy: cmp.Or(m.OwnedBy, "pointsman"), Root: m.Root, Parent: m.Parent,
		MaxModelLen: m.MaxModelLen}
}

// serveModels answers GET and HEAD of /v1/models and /v1/models/{id} from what the endpoints list.
func (x *exchange) serveModels() {
	list := x.p.cfg.Directory.List()
	if len(list) == 0 && !x.p.cfg.Directory.Listed() { // clients keep what they are told: nothing is known, not that there is nothing
		e := errNoEndpoint()
		e.Message = "no model server has listed its models yet; ask again in a moment"
		x.refuse(e)
		return
	}
	var answer any
	if x.api.Kind == llmapi.Models {
		cards := make([]modelCard, len(list))
		for i, m := range list {
			cards[i] = card(m)
		}
		answer = struct {
			Object string      `json:"object"`
			Data   []modelCard `json:"data"`
		}{"list", cards}
	} else {
		for _, m := range list {
			if m.ID == x.api.ModelID {
				answer = card(m)
			}
		}
		if answer == nil {
			_, err := x.p.cfg.Directory.Resolve(x.api.ModelID)
			x.refuse(unknownModel(x.api.ModelID, err))
			return
		}
	}
	body, err := json.Marshal(answer)
	if err != nil { // strings and numbers only: cannot happen
		panic(err)
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", fmt.Sprint(len(body)))
	x.rec.Status = http.StatusOK
	x.outcome = telemetry.OutcomeOK
	if x.in.Method != http.MethodHead {
		x.answer.bytes = int64(len(body))
		_, _ = x.w.Write(body) // a client that left has nothing to be told
	}
}
