package vllmsim

import (
	"encoding/json"
	"slices"
	"strings"
)

// jsonSchema is the part of a JSON schema that sampleJSON follows.
type jsonSchema struct {
	Type       json.RawMessage        `json:"type"` // a word or a list of words
	Properties map[string]*jsonSchema `json:"properties"`
	Required   []string               `json:"required"`
	Items      *jsonSchema            `json:"items"`
	Enum       []json.RawMessage      `json:"enum"`
	Const      json.RawMessage        `json:"const"`
	AnyOf      []*jsonSchema          `json:"anyOf"`
	Ref        string                 `json:"$ref"`
	Defs       map[string]*jsonSchema `json:"$defs"`
	MinItems   int                    `json:"minItems"`
}

// sampleJSON writes the smallest plain document that fits schema: what structured output and tool calls answer. An unknown
// or missing schema gives {}.
func sampleJSON(schema json.RawMessage) string {
	var js jsonSchema
	if json.Unmarshal(schema, &js) != nil {
		return "{}"
	}
	if len(js.Type) == 0 && len(js.Properties) == 0 && len(js.AnyOf) == 0 && js.Ref == "" {
		return "{}"
	}
	var b strings.Builder
	js.sample(&b, js.Defs, 0)
	return b.String()
}

// maxDepth ends recursive schemas.
const maxDepth = 8

func (js *jsonSchema) sample(b *strings.Builder, defs map[string]*jsonSchema, depth int) {
	if js == nil || depth > maxDepth {
		b.WriteString("null")
		return
	}
	switch {
	case len(js.Const) > 0:
		b.Write(js.Const)
	case len(js.Enum) > 0:
		b.Write(js.Enum[0])
	case js.Ref != "":
		defs[js.Ref[strings.LastIndex(js.Ref, "/")+1:]].sample(b, defs, depth+1)
	case len(js.AnyOf) > 0:
		js.AnyOf[0].sample(b, defs, depth+1)
	default:
		js.sampleType(b, defs, depth)
	}
}

func (js *jsonSchema) sampleType(b *strings.Builder, defs map[string]*jsonSchema, depth int) {
	var word string
	var words []string
	if json.Unmarshal(js.Type, &word) != nil && json.Unmarshal(js.Type, &words) == nil && len(words) > 0 {
		word = words[0]
	}
	switch word {
	case "string":
		b.WriteString(`"sim"`)
	case "integer", "number":
		b.WriteString("1")
	case "boolean":
		b.WriteString("true")
	case "null":
		b.WriteString("null")
	case "array":
		b.WriteByte('[')
		for i := range max(1, js.MinItems) {
			if i > 0 {
				b.WriteString(", ")
			}
			js.Items.sample(b, defs, depth+1)
		}
		b.WriteByte(']')
	default:
		js.sampleObject(b, defs, depth)
	}
}

func (js *jsonSchema) sampleObject(b *strings.Builder, defs map[string]*jsonSchema, depth int) {
	names := js.Required
	if len(names) == 0 {
		for name := range js.Properties {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(appendJSONString(nil, name))
		b.WriteString(": ")
		js.Properties[name].sample(b, defs, depth+1)
	}
	b.WriteByte('}')
}
