package llmapi

// spot says which container of an answer a value stands in, as far as it matters.
type spot uint8

const (
	atNothing  spot = iota
	atTop           // the answer, or an event's data
	atChoices       // choices[]
	atChoice        // choices[i]
	atDelta         // choices[i].delta, choices[i].message, delta
	atTokenIDs      // choices[i].token_ids[]
	atContent       // content that is no string: tool calls, parts
	atUsage         // usage, response.usage, message.usage
	atDetails       // usage.prompt_tokens_details, usage.input_tokens_details
	atError         // error, response.error
	atResponse      // response
	atMessage       // message
)

// member is a member that matters of such a container.
type member uint8

const (
	memberNone member = iota
	memberChoices
	memberUsage
	memberError
	memberDelta
	memberResponse
	memberMessage
	memberType
	memberObject
	memberCode
	memberSequence
	memberID
	memberIndex
	memberFinish
	memberTokenIDs
	memberContent
	memberPrompt
	memberOutput
	memberCacheRead
	memberCacheMade
	memberDetails
	memberCached
)

func topMember(key []byte) member {
	switch string(key) {
	case "choices":
		return memberChoices
	case "usage":
		return memberUsage
	case "error":
		return memberError
	case "delta":
		return memberDelta
	case "response":
		return memberResponse
	case "message":
		return memberMessage
	case "type":
		return memberType
	case "object":
		return memberObject
	case "code":
		return memberCode
	case "sequence_number":
		return memberSequence
	case "id":
		return memberID
	}
	return memberNone
}

func choiceMember(key []byte) member {
	switch string(key) {
	case "index":
		return memberIndex
	case "finish_reason":
		return memberFinish
	case "text":
		return memberContent
	case "token_ids":
		return memberTokenIDs
	case "delta", "message":
		return memberDelta
	}
	return memberNone
}

func deltaMember(key []byte) member {
	switch string(key) {
	case "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "audio",
		"text", "thinking", "partial_json":
		return memberContent
	}
	return memberNone
}

func usageMember(key []byte) member {
	switch string(key) {
	case "prompt_tokens", "input_tokens":
		return memberPrompt
	case "completion_tokens", "output_tokens":
		return memberOutput
	case "cache_read_input_tokens":
		return memberCacheRead
	case "cache_creation_input_tokens":
		return memberCacheMade
	case "prompt_tokens_details", "input_tokens_details":
		return memberDetails
	}
	return memberNone
}

func errorMember(key []byte) member {
	switch string(key) {
	case "message":
		return memberMessage
	case "code":
		return memberCode
	case "type":
		return memberType
	}
	return memberNone
}
