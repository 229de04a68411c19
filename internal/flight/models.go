package flight

import (
	"cmp"
	"encoding/json"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
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

// ModelList is the body of /v1/models or /v1/models/{id}, as api says, from what the endpoints list. The error, which is an
// *llmapi.Error, says that nothing is known yet or that nobody serves the model.
func ModelList(d *pool.Directory, api llmapi.API) ([]byte, error) {
	list := d.List()
	if len(list) == 0 && !d.Listed() { // clients keep what they are told: nothing is known, not that there is nothing
		e := NoEndpoint()
		e.Message = "no model server has listed its models yet; ask again in a moment"
		return nil, e
	}
	var answer any
	if api.Kind == llmapi.Models {
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
			if m.ID == api.ModelID {
				answer = card(m)
			}
		}
		if answer == nil {
			_, err := d.Resolve(api.ModelID)
			return nil, UnknownModel(api.ModelID, err)
		}
	}
	body, err := json.Marshal(answer)
	if err != nil { // strings and numbers only: cannot happen
		panic(err)
	}
	return body, nil
}
