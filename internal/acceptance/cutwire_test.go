package acceptance

import (
	"fmt"
	"strconv"
	"strings"
)

// dialect is how one API speaks on the wire: what the cut table needs of it.
type dialect struct {
	name, path string
	request    string   // a body that asks for no stream
	events     []string // of a stream that has begun and holds two tokens
	open       string   // the beginning of one more
	finish     []string // the events that end a whole answer, without [DONE]
	abort      string   // the engine says that it gave up; "": it has no words for it
	broken     string   // the engine's own error event
	whole      string   // an answer in one piece
	aborted    string   // one that the engine gave up
	failed     string   // one that is an error
	cut        func(code, typ, message string) string
	body       func(reason, typ, message string) string // an error before the head
}

// chatEvent is an event of the two APIs with choices.
func chatEvent(object, choice string) string {
	return `data: {"id":"x","object":"` + object + `","model":"m","choices":[` + choice + "]}\n\n"
}

func openAIError(code, typ, message string) string {
	return `{"error":{"message":` + strconv.Quote(message) + `,"type":"` + typ + `","param":null,"code":"` + code + `"}}`
}

func choicesCut(code, typ, message string) string {
	return "data: " + openAIError(code, typ, message) + "\n\n"
}

func named(event, data string) string { return "event: " + event + "\ndata: " + data + "\n\n" }

const engineDied = `{"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}`

func dialects() []dialect {
	return []dialect{chatDialect(), completionsDialect(), responsesDialect(), messagesDialect()}
}

func chatDialect() dialect {
	const object = "chat.completion.chunk"
	one := func(message, finish string) string {
		return `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` + message +
			`"},"finish_reason":"` + finish + `"}],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}}`
	}
	return dialect{
		name: "chat", path: "/v1/chat/completions",
		request: `{"model":"m","messages":[{"role":"user","content":"hello"}]}`,
		events: []string{
			chatEvent(object, `{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`),
			chatEvent(object, `{"index":0,"delta":{"content":"one "},"finish_reason":null}`),
			chatEvent(object, `{"index":0,"delta":{"content":"two "},"finish_reason":null}`),
		},
		open:   `data: {"id":"x","object":"` + object + `","model":"m","choices":[{"index":0,"delta":{"content":"thr`,
		finish: []string{chatEvent(object, `{"index":0,"delta":{},"finish_reason":"stop"}`)},
		abort:  chatEvent(object, `{"index":0,"delta":{"content":""},"finish_reason":"abort"}`),
		broken: "data: " + engineDied + "\n\n",
		whole:  one("one two", "stop"), aborted: one("one two", "abort"), failed: engineDied,
		cut: choicesCut, body: openAIError,
	}
}

func completionsDialect() dialect {
	const object = "text_completion"
	one := func(finish string) string {
		return `{"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"one two","logprobs":null,"finish_reason":"` + finish +
			`"}],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}}`
	}
	return dialect{
		name: "completions", path: "/v1/completions",
		request: `{"model":"m","prompt":"hello"}`,
		events: []string{
			chatEvent(object, `{"index":0,"text":"one ","logprobs":null,"finish_reason":null}`),
			chatEvent(object, `{"index":0,"text":"two ","logprobs":null,"finish_reason":null}`),
		},
		open:   `data: {"id":"x","object":"text_completion","model":"m","choices":[{"index":0,"text":"thr`,
		finish: []string{chatEvent(object, `{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}`)},
		abort:  chatEvent(object, `{"index":0,"text":"","logprobs":null,"finish_reason":"abort"}`),
		broken: "data: " + engineDied + "\n\n",
		whole:  one("stop"), aborted: one("abort"), failed: engineDied,
		cut: choicesCut, body: openAIError,
	}
}

func responsesDialect() dialect {
	response := func(status string) string {
		return `{"id":"resp_1","object":"response","created_at":1,"model":"m","status":"` + status + `","output":[{"type":"message","id":"msg_1","status":"completed","role":"assistant",` +
			`"content":[{"type":"output_text","text":"one two","annotations":[]}]}],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,` +
			`"output_tokens_details":{"reasoning_tokens":0},"total_tokens":22}}`
	}
	step := func(n int, text string) string {
		return named("response.output_text.delta", fmt.Sprintf(`{"type":"response.output_text.delta","sequence_number":%d,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"%s","logprobs":[]}`, n, text))
	}
	return dialect{
		name: "responses", path: "/v1/responses",
		request: `{"model":"m","input":"hello"}`,
		events: []string{
			named("response.created", `{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","created_at":1,"model":"m","status":"in_progress","output":[]}}`),
			step(1, "one "), step(2, "two "),
		},
		open:   "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":3,\"delta\":\"thr",
		finish: []string{named("response.completed", `{"type":"response.completed","sequence_number":3,"response":`+response("completed")+`}`)},
		broken: named("error", `{"type":"error","code":"server_error","message":"EngineCore encountered an issue.","param":null,"sequence_number":3}`),
		whole:  response("completed"), failed: engineDied,
		cut: func(code, _, message string) string {
			m := strconv.Quote(message)
			if code == "first_byte_timeout" { // nothing is known of the response yet
				return named("response.failed", `{"type":"response.failed","sequence_number":0,"response":{"id":"","object":"response","status":"failed","error":{"code":"server_error","message":`+m+
					`},"incomplete_details":null,"output":[]}}`) + named("error", `{"type":"error","code":"server_error","message":`+m+`,"param":null,"sequence_number":1}`)
			}
			return named("response.failed", `{"type":"response.failed","sequence_number":3,"response":{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error","message":`+m+
				`},"incomplete_details":null,"output":[]}}`) + named("error", `{"type":"error","code":"server_error","message":`+m+`,"param":null,"sequence_number":4}`)
		},
		body: openAIError,
	}
}

func messagesDialect() dialect {
	message := func(stop string) string {
		return `{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"one two"}],"stop_reason":"` + stop + `","stop_sequence":null,"usage":{"input_tokens":20,"output_tokens":2}}`
	}
	step := func(text string) string {
		return named("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"`+text+`"}}`)
	}
	failure := func(code, typ, message string) string {
		switch {
		case code == "gateway_shutdown": // another gateway can take it
			typ = "overloaded_error"
		case typ == "server_error":
			typ = "api_error"
		}
		return `{"type":"error","error":{"type":"` + typ + `","message":` + strconv.Quote(message) + `}}`
	}
	return dialect{
		name: "messages", path: "/v1/messages",
		request: `{"model":"m","max_tokens":64,"messages":[{"role":"user","content":"hello"}]}`,
		events: []string{
			named("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":20,"output_tokens":0}}}`),
			named("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
			step("one "), step("two "),
		},
		open: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"thr",
		finish: []string{
			named("content_block_stop", `{"type":"content_block_stop","index":0}`),
			named("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}`),
			named("message_stop", `{"type":"message_stop"}`),
		},
		broken: named("error", `{"type":"error","error":{"type":"api_error","message":"EngineCore encountered an issue."}}`),
		whole:  message("end_turn"), failed: `{"type":"error","error":{"type":"api_error","message":"EngineCore encountered an issue."}}`,
		cut:  func(code, typ, message string) string { return named("error", failure(code, typ, message)) },
		body: failure,
	}
}

// sofar is what a stream's client has when its engine breaks off.
func (d *dialect) sofar() string { return strings.Join(d.events, "") }

// streaming is the request for a stream.
func (d *dialect) streaming() string { return strings.TrimSuffix(d.request, "}") + `,"stream":true}` }
