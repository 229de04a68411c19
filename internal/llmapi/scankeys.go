package llmapi

// A want says what a value means, given where it stands.
type want uint8

const (
	wantSkip         want = iota // nothing
	wantTop                      // the body
	wantModel                    // string
	wantStream                   // bool
	wantStreamOpts               // object
	wantIncludeUsage             // bool in stream_options
	wantSampling                 // sampling_params object
	wantMax                      // number
	wantMaxChat                  // number, goes before the former
	wantN                        // number
	wantPriority                 // number
	wantPrevious                 // string
	wantSeed                     // anything, into the seed
	wantMessages                 // array of messages, or of arrays of them
	wantInput                    // string or array of items
	wantPrompt                   // string, token ids, or an array of either
	wantTexts                    // strings anywhere, each a prompt
	wantHead                     // system prompt outside of the messages
	wantMessage                  // object
	wantRole                     // string
	wantContent                  // string, null or array of parts
	wantPart                     // object or string
	wantType                     // string that is dropped when it says what is usual
	wantPartText                 // string, plain into the prompt
	wantMedia                    // string, or object that holds one
	wantMediaData                // string
	wantText                     // anything, with its structure into the prompt or the seed
	wantID                       // token id
	wantTruncation               // string
)

// A place is what a container is.
type place uint8

const (
	inTop place = iota
	inStreamOpts
	inSampling
	inSeed
	inMessages
	inMessage
	inContent
	inFirst // inContent before the first part
	inPart
	inMedia
	inText
	inTextArray
	inPrompts
	inIDs
	inTexts
)

// A topKey is a member of the body that matters.
type topKey struct {
	key   string
	want  want
	kinds uint32 // the kinds of API that have it, one bit each; 0: all
}

const (
	responsesOnly = 1 << Responses
	notResponses  = ^uint32(responsesOnly)
	scoredOnly    = 1<<Score | 1<<Rerank
	anthropicOnly = 1<<Messages | 1<<CountTokens
)

// topKeys are the names of vLLM 0.32's request models, and a few of SGLang. Of the
// rows with one name at most one is for a kind. At most 64: a second value for a
// row is detected by a bit.
var topKeys = [...]topKey{
	{"model", wantModel, 0},
	{"messages", wantMessages, 0},
	{"stream", wantStream, 0},
	{"stream_options", wantStreamOpts, 0},
	{"max_tokens", wantMax, 0},
	{"max_completion_tokens", wantMaxChat, 0},
	{"max_output_tokens", wantMax, 0},
	{"n", wantN, 0},
	{"priority", wantPriority, 0},
	{"previous_response_id", wantPrevious, 0},
	{"sampling_params", wantSampling, 0},
	{"prompt", wantPrompt, notResponses},
	{"prompt", wantSeed, responsesOnly}, // a stored template
	{"input", wantPrompt, notResponses},
	{"input", wantInput, responsesOnly},
	{"instructions", wantHead, responsesOnly},
	{"system", wantHead, anthropicOnly},
	{"token_ids", wantPrompt, 0},
	{"tokens", wantPrompt, 0},
	{"documents", wantTexts, scoredOnly},
	{"documents", wantSeed, ^uint32(scoredOnly)},
	{"query", wantTexts, scoredOnly},
	{"queries", wantTexts, scoredOnly},
	{"items", wantTexts, scoredOnly},
	{"text_1", wantTexts, scoredOnly},
	{"text_2", wantTexts, scoredOnly},
	{"data_1", wantTexts, scoredOnly},
	{"data_2", wantTexts, scoredOnly},
	{"tools", wantSeed, 0},
	{"functions", wantSeed, 0},
	{"chat_template", wantSeed, 0},
	{"chat_template_kwargs", wantSeed, 0},
	{"cache_salt", wantSeed, 0},
	{"reasoning_effort", wantSeed, 0},
	{"reasoning", wantSeed, 0},
	{"thinking", wantSeed, 0},
	{"mm_processor_kwargs", wantSeed, 0},
	{"add_special_tokens", wantSeed, 0},
	{"truncate_prompt_tokens", wantSeed, 0},
	{"truncation", wantTruncation, responsesOnly},
	{"prompt_embeds", wantSeed, 0},
	{"features", wantSeed, 0},
	{"lora_path", wantSeed, 0},
}

// topKey returns what a member of the body means, and refuses a second one.
func (s *Scanner) topKey(key string) want {
	for i := range topKeys {
		k := &topKeys[i]
		if k.key != key || k.kinds != 0 && k.kinds>>s.api.Kind&1 == 0 {
			continue
		}
		if s.seen>>i&1 == 1 {
			s.err = duplicate(k.key)
			return wantSkip
		}
		s.seen |= 1 << i
		return k.want
	}
	return wantSkip
}

// messageKey is what a field of a message, or of an input item, means.
func (s *Scanner) messageKey(key string) want {
	switch key {
	case "role":
		return wantRole
	case "content", "output":
		return wantContent
	case "type":
		return wantType
	case "cache_control":
		return wantSkip
	case "id", "status":
		if s.api.Kind == Responses {
			return wantSkip // of the item, not of the prompt
		}
	}
	return wantText
}

// partKey is what a field of a content part means. Caching marks are not rendered,
// and clients move them from turn to turn.
func partKey(key string) want {
	switch key {
	case "text":
		return wantPartText
	case "type":
		return wantType
	case "content":
		return wantContent
	case "cache_control":
		return wantSkip
	}
	if mediaKind(key) != 0 {
		return wantMedia
	}
	return wantText
}

// textKey is what a field of any other object inside of a prompt, or of a tool,
// means.
func (s *Scanner) textKey(key string) want {
	switch key {
	case "cache_control":
		return wantSkip
	case "image_url", "audio_url", "video_url", "input_audio":
		if s.to != toSeed {
			return wantMedia
		}
	}
	return wantText
}

func mediaKey(key string) want {
	switch key {
	case "url", "data", "file_data", "image", "content":
		return wantMediaData
	case "cache_control":
		return wantSkip
	}
	return wantText
}

// Kinds of media, as prefix.Hasher.Opaque takes them, and what one is worth in
// prompt bytes: about 500 tokens for an image, as the common vision models make of
// a screen-sized one.
const (
	mediaImage = 'i'
	mediaAudio = 'a'
	mediaVideo = 'v'
	mediaFile  = 'f'

	nominalImage = 2048
	nominalVideo = 16384
)

func mediaKind(key string) byte {
	switch key {
	case "image_url", "image", "source", "image_embeds":
		return mediaImage
	case "audio_url", "input_audio", "audio", "audio_embeds":
		return mediaAudio
	case "video_url", "video":
		return mediaVideo
	case "file", "file_data", "file_url":
		return mediaFile
	}
	return 0
}

func nominal(kind byte) int {
	if kind == mediaVideo {
		return nominalVideo
	}
	return nominalImage
}
