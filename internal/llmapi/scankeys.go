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

// topKey returns what a top-level key's value means and the bit that detects a
// second one, 0 for keys that do not matter. The names are those of vLLM 0.32's
// request models, and a few of SGLang.
func (s *Scanner) topKey(key string) (want, uint64) {
	w, bit := s.commonKey(key)
	if bit != 0 {
		return w, 1 << bit
	}
	w, bit = s.promptKey(key)
	if bit == 0 {
		return wantSkip, 0
	}
	return w, 1 << bit
}

func (s *Scanner) commonKey(key string) (want, uint) {
	switch key {
	case "model":
		return wantModel, 1
	case "stream":
		return wantStream, 2
	case "stream_options":
		return wantStreamOpts, 3
	case "max_tokens":
		return wantMax, 4
	case "max_completion_tokens":
		return wantMaxChat, 5
	case "max_output_tokens":
		return wantMax, 6
	case "n":
		return wantN, 7
	case "priority":
		return wantPriority, 8
	case "previous_response_id":
		return wantPrevious, 9
	case "sampling_params":
		return wantSampling, 10
	case "tools":
		return wantSeed, 11
	case "functions":
		return wantSeed, 12
	case "chat_template":
		return wantSeed, 13
	case "chat_template_kwargs":
		return wantSeed, 14
	case "cache_salt":
		return wantSeed, 15
	case "reasoning_effort":
		return wantSeed, 16
	case "reasoning":
		return wantSeed, 17
	case "thinking":
		return wantSeed, 18
	case "mm_processor_kwargs":
		return wantSeed, 19
	case "add_special_tokens":
		return wantSeed, 20
	case "truncate_prompt_tokens":
		return wantSeed, 21
	case "prompt_embeds":
		return wantSeed, 22
	case "features":
		return wantSeed, 23
	case "lora_path":
		return wantSeed, 24
	}
	return wantSkip, 0
}

// promptKey is commonKey for the keys whose meaning depends on the API.
func (s *Scanner) promptKey(key string) (want, uint) {
	scored := s.api.Kind == Score || s.api.Kind == Rerank
	switch key {
	case "messages":
		return wantMessages, 32
	case "prompt":
		if s.api.Kind == Responses {
			return wantSeed, 33 // a stored template
		}
		return wantPrompt, 33
	case "input":
		if s.api.Kind == Responses {
			return wantInput, 34
		}
		return wantPrompt, 34
	case "instructions":
		if s.api.Kind == Responses {
			return wantHead, 35
		}
	case "system":
		if s.api.Dialect == Anthropic {
			return wantHead, 36
		}
	case "token_ids", "tokens":
		return wantPrompt, 37
	case "documents":
		if scored {
			return wantTexts, 38
		}
		return wantSeed, 38
	}
	if scored {
		return scoredKey(key)
	}
	return wantSkip, 0
}

func scoredKey(key string) (want, uint) {
	switch key {
	case "query":
		return wantTexts, 39
	case "queries":
		return wantTexts, 40
	case "items":
		return wantTexts, 41
	case "text_1":
		return wantTexts, 42
	case "text_2":
		return wantTexts, 43
	case "data_1":
		return wantTexts, 44
	case "data_2":
		return wantTexts, 45
	}
	return wantSkip, 0
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

// textKey is what a field of any other object inside of a prompt means.
func textKey(key string) want {
	switch key {
	case "cache_control":
		return wantSkip
	case "image_url", "audio_url", "video_url", "input_audio":
		return wantMedia
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
