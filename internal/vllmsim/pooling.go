package vllmsim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// embeddingSize is the length of a vector when the client does not ask for another.
const embeddingSize = 64

// pooled is the outcome of a pooling request: one seed per input, from which scores and vectors are drawn.
type pooled struct {
	fields fields
	model  string
	texts  []string // documents of score and rerank
	seeds  []uint64
	tokens int
}

func (s *Server) poolingRoutes(add func(string, bool, map[string]func(*exchange)), post func(func(*exchange)) map[string]func(*exchange)) {
	for path, kind := range map[string]string{"/v1/embeddings": "embd", "/pooling": "pool", "/classify": "classify", "/score": "score",
		"/v1/score": "score", "/rerank": "rerank", "/v1/rerank": "rerank", "/v2/rerank": "rerank"} {
		add(path, true, post(s.posted(false, func(x *exchange, body []byte) *apiError { return s.pool(x, body, kind) })))
	}
	add("/v1/audio/transcriptions", true, post(s.transcribe))
	add("/v1/audio/translations", true, post(s.transcribe))
}

// pool runs the inputs of a pooling body through the engine, one step each, and writes the answer of the route.
func (s *Server) pool(x *exchange, body []byte, kind string) *apiError {
	f, e := s.decode(body, schema{types: map[string]fieldType{"model": stringType, "cache_salt": stringType, "messages": listType,
		"documents": anyType, "dimensions": intType, "top_n": intType}})
	if e != nil {
		return e
	}
	delete(f, "max_tokens")
	p, e := s.params(f, "max_tokens")
	if e != nil {
		return e
	}
	p.maxTokens, p.maxGiven, p.n = 1, true, 1
	prompts, texts, e := s.poolInputs(f, kind)
	if e != nil {
		return e
	}
	c, e := s.newCall(kind+"-"+s.requestID(x.r), p, prompts, false, false)
	if e != nil {
		return e
	}
	out := pooled{fields: f, model: p.model, texts: texts}
	for _, pr := range prompts {
		out.seeds = append(out.seeds, s.answerSeed(pr.ids, p.salt))
		out.tokens += len(pr.ids)
	}
	x.generate(c, body, &poolAnswer{id: c.id, kind: kind, out: out}, false)
	return nil
}

// poolInputs returns one prompt per vector or pair.
func (s *Server) poolInputs(f fields, kind string) ([]prompt, []string, *apiError) {
	if kind != "score" && kind != "rerank" {
		if f.has("messages") {
			messages, _ := chatMessages(f["messages"])
			return []prompt{s.textPrompt(renderSegments("", messages, false))}, nil, nil
		}
		prompts, e := s.tokenPrompts(f["input"])
		return prompts, nil, e
	}
	queries, documents := f.strings("query"), documentTexts(f, "documents")
	for _, name := range []string{"text_1", "queries", "data_1"} {
		queries = append(queries, f.strings(name)...)
	}
	for _, name := range []string{"text_2", "data_2"} {
		documents = append(documents, f.strings(name)...)
	}
	if len(queries) == 0 || len(documents) == 0 {
		return nil, nil, badRequest("", "At least one query and one document must be given")
	}
	if len(queries) > 1 && len(queries) != len(documents) {
		return nil, nil, badRequest("", "Input lengths must be either 1:1, 1:N or N:N")
	}
	prompts := make([]prompt, len(documents))
	for i, d := range documents {
		prompts[i] = s.textPrompt([]string{"<s>", queries[min(i, len(queries)-1)], "</s>", d})
	}
	return prompts, documents, nil
}

// documentTexts reads documents given as strings or as {"text": ...}.
func documentTexts(f fields, name string) []string {
	var raw []json.RawMessage
	if json.Unmarshal(f[name], &raw) != nil {
		return f.strings(name)
	}
	texts := make([]string, len(raw))
	for i, r := range raw {
		if json.Unmarshal(r, &texts[i]) != nil {
			texts[i] = fields{"d": r}.sub("d").str("text")
		}
	}
	return texts
}

// poolAnswer writes the result of a pooling route.
type poolAnswer struct {
	id, kind string
	out      pooled
}

func (a *poolAnswer) start(*exchange) {}

func (a *poolAnswer) event(*exchange, event) {}

func (a *poolAnswer) broken(x *exchange, e *apiError) { x.fail(e, false) }

func unit(seed uint64) float64 { return float64(mix(seed)>>11) / (1 << 53) }

func (a *poolAnswer) end(x *exchange) {
	if a.kind == "rerank" {
		x.json(http.StatusOK, a.rerank())
		return
	}
	b := append([]byte(`{"id":`), appendJSONString(nil, a.id)...)
	b = append(b, `,"object":"list","created":`...)
	b = strconv.AppendInt(b, time.Now().Unix(), 10)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.out.model)
	b = append(b, `,"data":[`...)
	for i, seed := range a.out.seeds {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		switch a.kind {
		case "embd":
			b = append(b, `,"object":"embedding","embedding":`...)
			b = a.vector(b, seed)
		case "pool":
			b = append(b, `,"object":"pooling","data":`...)
			b = a.vector(b, seed)
		case "classify":
			b = append(b, `,"label":"LABEL_`+strconv.Itoa(int(seed%2))+`","probs":[`...)
			b = appendFloat(b, unit(seed))
			b = append(b, ',')
			b = append(appendFloat(b, 1-unit(seed)), `],"num_classes":2`...)
		default:
			b = append(b, `,"object":"score","score":`...)
			b = appendFloat(b, unit(seed))
		}
		b = append(b, '}')
	}
	x.json(http.StatusOK, append(a.usage(append(b, `],"usage":`...)), '}'))
}

func (a *poolAnswer) usage(b []byte) []byte {
	n := strconv.Itoa(a.out.tokens)
	return append(b, `{"prompt_tokens":`+n+`,"total_tokens":`+n+`,"completion_tokens":0,"prompt_tokens_details":null}`...)
}

// vector draws a unit vector from seed, as numbers or in base64 as the client asks.
func (a *poolAnswer) vector(b []byte, seed uint64) []byte {
	n := a.out.fields.integer("dimensions", embeddingSize)
	if n < 1 || n > 1<<16 {
		n = embeddingSize
	}
	v, norm := make([]float64, n), 0.0
	for i := range v {
		v[i] = 2*unit(seed+uint64(i)) - 1
		norm += v[i] * v[i]
	}
	raw := make([]byte, 0, 4*n)
	numbers := []byte{'['}
	for i := range v {
		f := float32(v[i] / math.Sqrt(norm))
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
		if i > 0 {
			numbers = append(numbers, ',')
		}
		numbers = appendFloat(numbers, float64(f))
	}
	if a.out.fields.str("encoding_format") == "base64" {
		return append(append(b, '"'), base64.StdEncoding.EncodeToString(raw)+`"`...)
	}
	return append(append(b, numbers...), ']')
}

func (a *poolAnswer) rerank() []byte {
	order := make([]int, len(a.out.seeds))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return int(math.Copysign(1, unit(a.out.seeds[j])-unit(a.out.seeds[i])))
	})
	if n := a.out.fields.integer("top_n", 0); n > 0 {
		order = order[:min(n, len(order))]
	}
	b := append([]byte(`{"id":`), appendJSONString(nil, a.id)...)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.out.model)
	n := strconv.Itoa(a.out.tokens)
	b = append(b, `,"usage":{"prompt_tokens":`+n+`,"total_tokens":`+n+`},"results":[`...)
	for i, k := range order {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`+strconv.Itoa(k)+`,"document":{"text":`...)
		b = appendJSONString(b, a.out.texts[k])
		b = append(b, `,"multi_modal":null},"relevance_score":`...)
		b = append(appendFloat(b, unit(a.out.seeds[k])), '}')
	}
	return append(b, "]}"...)
}

// transcribe is the audio route: multipart, the model in a form field. The text depends on the file alone.
func (s *Server) transcribe(x *exchange) {
	defer s.enter()()
	body, ok := x.readBody()
	if !ok {
		panic(http.ErrAbortHandler)
	}
	x.r.Body = http.NoBody
	form, err := readForm(x.r.Header.Get("Content-Type"), body)
	if err != nil {
		x.fail(badRequest("", "%s", err.Error()), false)
		return
	}
	f := fields{"model": appendJSONString(nil, form.values["model"]), "stream": []byte(strconv.FormatBool(form.values["stream"] == "true"))}
	p, e := s.params(f, "max_tokens")
	if e != nil {
		x.fail(e, false)
		return
	}
	p.stream, p.maxGiven, p.maxTokens = false, true, 16
	if !x.begin(false) {
		return
	}
	c, e := s.newCall("trsc-"+s.requestID(x.r), p, []prompt{s.textPrompt([]string{imageText(form.file)})}, false, false)
	if e != nil {
		x.fail(e, false)
		return
	}
	x.generate(c, body, &transcript{}, false)
}

// transcript writes the answer of the audio routes.
type transcript struct{ text strings.Builder }

func (a *transcript) start(*exchange) {}

func (a *transcript) event(_ *exchange, ev event) {
	for _, t := range ev.tokens {
		a.text.WriteString(t.text)
	}
}

func (a *transcript) end(x *exchange) {
	b := append([]byte(`{"text":`), appendJSONString(nil, a.text.String())...)
	x.json(http.StatusOK, append(b, `,"usage":{"type":"duration","seconds":1}}`...))
}

func (a *transcript) broken(x *exchange, e *apiError) { x.fail(e, false) }
