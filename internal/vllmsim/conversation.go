package vllmsim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// message is one message of a conversation as the chat template sees it.
type message struct {
	role    string
	content string     // text parts joined, images as text that stands for them
	calls   []toolCall // of an assistant message
}

// toolCall is a function call that an assistant message made.
type toolCall struct {
	name, arguments string
}

// renderSegments applies the chat template, the recorded one
//
//	{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}
//
// except that the generation prompt begins with <s> too, so that the next turn of a conversation has this turn's tokens,
// prompt and answer, as its prefix. prefix comes before the first message (tools, documents, template arguments).
func renderSegments(prefix string, messages []message, generate bool) []string {
	segments := make([]string, 0, 4*len(messages)+3)
	if prefix != "" {
		segments = append(segments, prefix)
	}
	for _, m := range messages {
		segments = append(segments, "<s>", m.role+": ", m.content)
		for _, c := range m.calls {
			segments = append(segments, c.arguments, c.name)
		}
		segments = append(segments, "\n")
	}
	if generate {
		segments = append(segments, "<s>", "assistant: ")
	}
	return segments
}

// prefixOf collects the fields that a chat template puts before the messages.
func prefixOf(f fields, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		if raw := f[name]; f.has(name) && string(raw) != "[]" {
			b.WriteString(name)
			b.Write(raw)
		}
	}
	return b.String()
}

// part is a content part of any of the three dialects.
type part struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ImageURL  json.RawMessage `json:"image_url"` // {"url":...} or a string
	Source    json.RawMessage `json:"source"`    // Anthropic image
	Name      string          `json:"name"`      // tool_use
	Input     json.RawMessage `json:"input"`
	Content   json.RawMessage `json:"content"` // tool_result: string or parts
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Role      string          `json:"role"`
}

// imageTokens is what one image costs. Real models spend 200 to 1500 tokens.
const imageTokens = 256

// imageText stands for an image: the same image gives the same tokens, another image others.
func imageText(source json.RawMessage) string {
	sum := sha256.Sum256(source)
	return strings.Repeat(hex.EncodeToString(sum[:]), imageTokens*pieceBytes/hex.EncodedLen(len(sum)))
}

// contents is what a content value holds.
type contents struct {
	text   string
	images int
	calls  []toolCall
}

// readContent decodes a string, null, or a list of parts.
func readContent(raw json.RawMessage) contents {
	var c contents
	if json.Unmarshal(raw, &c.text) == nil {
		return c
	}
	var parts []part
	if json.Unmarshal(raw, &parts) != nil {
		return c
	}
	var b strings.Builder
	for _, p := range parts {
		switch {
		case len(p.ImageURL) > 0 || len(p.Source) > 0:
			c.images++
			b.WriteString(imageText(append(p.ImageURL, p.Source...)))
		case p.Type == "tool_use":
			c.calls = append(c.calls, toolCall{p.Name, string(p.Input)})
		case p.Type == "tool_result":
			inner := readContent(p.Content)
			c.images += inner.images
			b.WriteString(inner.text)
		default:
			b.WriteString(p.Text)
		}
	}
	c.text = b.String()
	return c
}

// chatMessages decodes the messages of the chat and Anthropic routes. images counts image parts.
func chatMessages(raw json.RawMessage) (messages []message, images int) {
	var list []struct {
		Role      string          `json:"role"`
		Content   json.RawMessage `json:"content"`
		ToolCalls []struct {
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	}
	_ = json.Unmarshal(raw, &list)
	for _, m := range list {
		c := readContent(m.Content)
		for _, call := range m.ToolCalls {
			c.calls = append(c.calls, toolCall{call.Function.Name, call.Function.Arguments})
		}
		images += c.images
		messages = append(messages, message{m.Role, c.text, c.calls})
	}
	return messages, images
}

// inputMessages decodes the input of the responses route: a string or a list of items.
func inputMessages(raw json.RawMessage) (messages []message, images int) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []message{{role: "user", content: text}}, 0
	}
	var items []part
	_ = json.Unmarshal(raw, &items)
	for _, it := range items {
		switch it.Type {
		case "function_call":
			messages = append(messages, message{role: "assistant", calls: []toolCall{{it.Name, it.Arguments}}})
		case "function_call_output":
			messages = append(messages, message{role: "tool", content: readContent(it.Output).text})
		default:
			c := readContent(it.Content)
			images += c.images
			messages = append(messages, message{role: it.Role, content: c.text})
		}
	}
	return messages, images
}

// toolChoice is what the simulated model does with tools: it calls the first one (or the one that is named) when it must, and
// with "auto" when the last message is the user's. A conversation therefore goes question, call, result, answer.
type toolChoice struct {
	call      bool
	name      string
	arguments string
}

// tool is a tool definition of any of the three dialects.
type tool struct {
	Name        string          `json:"name"`
	Parameters  json.RawMessage `json:"parameters"`
	InputSchema json.RawMessage `json:"input_schema"`
	Function    *tool           `json:"function"`
}

func (t tool) schema() json.RawMessage {
	if len(t.InputSchema) > 0 {
		return t.InputSchema
	}
	return t.Parameters
}

// chooseTool reads tools and tool_choice.
func (s *Server) chooseTool(f fields, last message) (toolChoice, *apiError) {
	var tools []tool
	_ = json.Unmarshal(f["tools"], &tools)
	if len(tools) == 0 {
		return toolChoice{}, nil
	}
	mode, named := "auto", ""
	if f.has("tool_choice") && json.Unmarshal(f["tool_choice"], &mode) != nil {
		choice := f.sub("tool_choice")
		mode = choice.str("type")
		if named = choice.str("name"); named == "" {
			named = choice.sub("function").str("name")
		}
	}
	if mode == "auto" && !s.cfg.ToolParser {
		return toolChoice{}, badRequest("", `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)
	}
	if mode == "none" || mode == "auto" && last.role != "user" {
		return toolChoice{}, nil
	}
	picked := tools[0]
	for _, t := range tools {
		if t.Function != nil {
			t = *t.Function
		}
		if picked.Function != nil {
			picked = t
		}
		if t.Name == named {
			picked = t
		}
	}
	return toolChoice{call: true, name: picked.Name, arguments: sampleJSON(picked.schema())}, nil
}
