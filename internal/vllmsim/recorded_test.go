package vllmsim

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// exchangeFile is one recorded exchange: the bytes that went over the wire.
type exchangeFile struct {
	request, response []byte
}

func readExchange(t *testing.T, stem string) exchangeFile {
	t.Helper()
	var e exchangeFile
	var err error
	if e.request, err = os.ReadFile(stem + ".request.http"); err != nil {
		t.Fatal(err)
	}
	if e.response, err = os.ReadFile(stem + ".response.http"); err != nil {
		t.Fatal(err)
	}
	return e
}

func splitHead(raw []byte) (head string, body []byte) {
	before, after, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	return string(before), after
}

// recordedLexicon is a tokenizer and a model that know what one recording says: how many tokens its prompt has, and which
// tokens came out.
type recordedLexicon struct {
	promptTokens int
	promptIDs    []uint32
	texts        map[uint32]string

	mu      sync.Mutex
	answers [][]token
	seeds   map[uint64]int
}

func (l *recordedLexicon) vocab() int64          { return 512 }
func (l *recordedLexicon) text(id uint32) string { return l.texts[id] }

func (l *recordedLexicon) encode(segments []string) []uint32 {
	if l.promptIDs != nil {
		return l.promptIDs
	}
	text := strings.Join(segments, "")
	n := l.promptTokens
	if n == 0 {
		n = len(text)
	}
	ids := make([]uint32, n)
	for i := range ids {
		h := fnv.New32a()
		_, _ = h.Write([]byte(text[i*len(text)/n : (i+1)*len(text)/n]))
		ids[i] = h.Sum32()
	}
	return ids
}

func (l *recordedLexicon) generate(seed uint64, i int) (uint32, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.seeds[seed]
	if !ok {
		k = len(l.seeds)
		l.seeds[seed] = k
	}
	if k < len(l.answers) && i < len(l.answers[k]) {
		return l.answers[k][i].id, l.answers[k][i].text
	}
	return 0, ""
}

var (
	promptCount = regexp.MustCompile(`"(?:prompt_tokens|input_tokens|original_input_tokens)":(\d+)|requested (\d+) tokens in the messages|\((\d+) in the messages`)
	cacheRead   = regexp.MustCompile(`"cache_read_input_tokens":(\d+)`)
	sseData     = regexp.MustCompile(`(?m)^data: (\{.*\})$`)
)

// newRecordedLexicon reads a recorded response.
func newRecordedLexicon(response []byte, prompts int) *recordedLexicon {
	l := &recordedLexicon{seeds: map[uint64]int{}, texts: map[uint32]string{120: "he", 78: "l", 179: "lo", 170: " w"}}
	head, body := splitHead(response)
	for _, m := range promptCount.FindAllSubmatch(body, 1) {
		l.promptTokens, _ = strconv.Atoi(string(bytes.Join(m[1:], nil)))
		l.promptTokens /= prompts
	}
	if m := cacheRead.FindSubmatch(body); m != nil && !bytes.Contains(body, []byte("message_start")) {
		read, _ := strconv.Atoi(string(m[1])) // here input_tokens counts only what was not in the cache
		l.promptTokens += read
	}
	if strings.Contains(head, "event-stream") {
		for _, m := range sseData.FindAllSubmatch(body, -1) {
			l.learn(m[1], true)
		}
		return l
	}
	l.learn(body, false)
	return l
}

type anyAnswer struct {
	Choices []struct {
		Index int `json:"index"`
		Delta *struct {
			Role    string  `json:"role"`
			Content *string `json:"content"`
		} `json:"delta"`
		Message *struct {
			Content string `json:"content"`
		} `json:"message"`
		Text     *string  `json:"text"`
		TokenIDs []uint32 `json:"token_ids"`
	} `json:"choices"`
	Type           string                                      `json:"type"`
	Delta          json.RawMessage                             `json:"delta"`
	Content        []struct{ Text string }                     `json:"content"`
	Output         []struct{ Content []struct{ Text string } } `json:"output"`
	PromptTokenIDs []uint32                                    `json:"prompt_token_ids"`
	Tokens         []uint32                                    `json:"tokens"`
	TokenIDs       []uint32                                    `json:"token_ids"`
	TokenStrs      []string                                    `json:"token_strs"`
	Usage          json.RawMessage                             `json:"usage"`
}

func (l *recordedLexicon) add(job int, ids []uint32, text string) {
	for len(l.answers) <= job {
		l.answers = append(l.answers, nil)
	}
	id := uint32(0)
	if len(ids) > 0 {
		id = ids[0]
	}
	l.answers[job] = append(l.answers[job], token{id, text})
	for _, more := range ids[min(1, len(ids)):] {
		l.answers[job] = append(l.answers[job], token{id: more})
	}
}

func (l *recordedLexicon) learn(data []byte, stream bool) {
	if bytes.HasPrefix(data, []byte("[")) {
		data = bytes.TrimSuffix(data[1:], []byte("]"))
	}
	var a anyAnswer
	_ = json.Unmarshal(data, &a)
	for _, ids := range [][]uint32{a.PromptTokenIDs, a.Tokens, a.TokenIDs} {
		if len(ids) > 0 {
			l.promptIDs, l.promptTokens = ids, len(ids)
		}
	}
	for i, s := range a.TokenStrs {
		l.texts[a.Tokens[i]] = strings.NewReplacer("Ġ", " ", "Ċ", "\n").Replace(s)
	}
	for _, c := range a.Choices {
		switch {
		case c.Delta != nil && c.Delta.Role == "" && c.Delta.Content != nil:
			l.add(c.Index, c.TokenIDs, *c.Delta.Content)
		case c.Message != nil:
			l.add(c.Index, c.TokenIDs, c.Message.Content)
		case c.Text != nil:
			l.add(c.Index, c.TokenIDs, *c.Text)
		case c.Delta == nil && len(c.TokenIDs) > 0:
			l.add(c.Index, c.TokenIDs, "")
		}
	}
	var text string
	var delta struct{ Text string }
	switch {
	case a.Type == "response.output_text.delta" && json.Unmarshal(a.Delta, &text) == nil:
		l.add(0, nil, text)
	case a.Type == "content_block_delta" && json.Unmarshal(a.Delta, &delta) == nil:
		l.add(0, nil, delta.Text)
	case !stream && a.Type == "message" && len(a.Content) > 0:
		l.add(0, nil, a.Content[0].Text)
	case !stream && len(a.Output) > 0:
		l.add(0, nil, a.Output[0].Content[0].Text)
	}
}

// recordedConfig is the command line of the recorded servers.
func recordedConfig(style string) Config {
	return Config{Model: []string{"tiny", "alias"}, Root: "/models/tiny", MaxModelLen: 2048, BlockSize: 32, NumBlocks: 72, MaxNumSeqs: 8,
		MaxBatchedTokens: 256, Profile: "tiny-cpu", Speed: 100, PrefixCaching: true, RequestIDHeaders: true, DevMode: true,
		MetricsStyle: style, Merge: -1}
}
