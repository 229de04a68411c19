package vllmsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fields is the decoded top level of a request body.
type fields map[string]json.RawMessage

// fieldType says what a field must be; the server's own schema errors name it.
type fieldType byte

const (
	anyType fieldType = iota
	stringType
	intType
	numberType
	boolType
	listType
	objectType
)

// schema is what a route's body must hold. Fields that it does not name are accepted and ignored, as the server does.
type schema struct {
	types    map[string]fieldType
	required []string
	extra    int // items that the route adds to the body before it is checked; they show in the error text
}

var errBodyEncoding = &apiError{status: http.StatusBadRequest, kind: "detail", message: "There was an error parsing the body"}

func checkContentType(r *http.Request) *apiError {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if strings.EqualFold(strings.TrimSpace(media), "application/json") {
		return nil
	}
	return &apiError{status: http.StatusBadRequest, kind: "Bad Request", schema: true,
		message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"}
}

// decode parses body and checks it against sc.
func (s *Server) decode(body []byte, sc schema) (fields, *apiError) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, s.schemaError([]problem{{kind: "missing", msg: "Field required", input: []byte("null")}}, 0)
	}
	if !utf8.Valid(body) {
		return nil, errBodyEncoding
	}
	var f fields
	if err := json.Unmarshal(body, &f); err != nil || f == nil {
		return nil, s.notAnObject(body)
	}
	var problems []problem
	for _, name := range sc.required {
		if _, ok := f[name]; !ok {
			problems = append(problems, problem{loc: name, kind: "missing", msg: "Field required", input: body})
		}
	}
	for name, raw := range f {
		optional := !slices.Contains(sc.required, name)
		if p, bad := checkType(name, raw, sc.types[name], optional); bad {
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b problem) int { return strings.Compare(a.loc, b.loc) })
		return nil, s.schemaError(problems, sc.extra)
	}
	return f, nil
}

func (s *Server) notAnObject(body []byte) *apiError {
	if json.Valid(body) {
		return s.schemaError([]problem{{kind: "model_attributes_type", input: body,
			msg: "Input should be a valid dictionary or object to extract fields from"}}, 0)
	}
	msg, pos := jsonSyntax(body)
	return s.schemaError([]problem{{loc: strconv.Itoa(pos), position: true, kind: "json_invalid", msg: "JSON decode error", input: []byte("{}"),
		context: msg}}, 0)
}

// problem is one line of a schema error.
type problem struct {
	loc       string // below "body"; "" = the body itself
	kind, msg string
	input     json.RawMessage
	context   string
	position  bool // loc is a position, not a name
}

func (s *Server) schemaError(problems []problem, extra int) *apiError {
	plural := ""
	if len(problems) > 1 {
		plural = "s"
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.current(extra)
		if s.old() {
			lines[i] = p.old()
		}
	}
	e := &apiError{status: http.StatusBadRequest, kind: "Bad Request", schema: true, param: problems[0].path()}
	if s.old() {
		e.message = "[" + strings.Join(lines, ", ") + "]"
	} else {
		e.message = fmt.Sprintf("%d validation error%s:\n  %s", len(problems), plural, strings.Join(lines, "\n  "))
	}
	return e
}

func (p problem) path() string {
	if p.loc == "" {
		return "body"
	}
	return "body." + p.loc
}

func (p problem) current(extra int) string {
	text := fmt.Sprintf("{'type': '%s', 'loc': '%s', 'msg': %s, 'input': %s", p.kind, p.path(), pyQuote(p.msg), pyShort(p.input, extra))
	if p.context != "" {
		text += ", 'ctx': {'error': " + pyQuote(p.context) + "}"
	}
	return text + "}"
}

func (p problem) old() string {
	loc := "'body', " + pyQuote(p.loc)
	if p.position {
		loc = "'body', " + p.loc
	}
	text := fmt.Sprintf("{'type': '%s', 'loc': (%s), 'msg': %s, 'input': %s", p.kind, loc, pyQuote(p.msg), pyRepr(p.input))
	if p.context != "" {
		text += ", 'ctx': {'error': " + pyQuote(p.context) + "}"
	}
	return text + "}"
}

// checkType says whether raw fits t, with the leniency of the server's own checks: "5" is an integer, 1 is a boolean.
func checkType(name string, raw json.RawMessage, t fieldType, optional bool) (problem, bool) {
	null := string(raw) == "null"
	if t == anyType || null && optional {
		return problem{}, false
	}
	kind, msg := typeError(raw, t)
	return problem{loc: name, kind: kind, msg: msg, input: raw}, kind != ""
}

func typeError(raw json.RawMessage, t fieldType) (kind, msg string) {
	first := raw[0]
	number := first == '-' || first >= '0' && first <= '9'
	switch t {
	case stringType:
		if first != '"' {
			return "string_type", "Input should be a valid string"
		}
	case listType:
		if first != '[' {
			return "list_type", "Input should be a valid list"
		}
	case objectType:
		if first != '{' {
			return "dict_type", "Input should be a valid dictionary"
		}
	case boolType:
		return boolError(raw)
	case numberType, intType:
		return numberError(raw, t, number)
	}
	return "", ""
}

func boolError(raw json.RawMessage) (kind, msg string) {
	switch strings.ToLower(string(raw)) {
	case "true", "false", "0", "1", `"true"`, `"false"`, `"0"`, `"1"`, `"yes"`, `"no"`, `"on"`, `"off"`:
		return "", ""
	}
	if raw[0] == '"' {
		return "bool_parsing", "Input should be a valid boolean, unable to interpret input"
	}
	return "bool_type", "Input should be a valid boolean"
}

func numberError(raw json.RawMessage, t fieldType, number bool) (kind, msg string) {
	name, article := "float", "number"
	if t == intType {
		name, article = "int", "integer"
	}
	text := string(raw)
	if raw[0] == '"' {
		_ = json.Unmarshal(raw, &text)
	} else if !number {
		return name + "_type", "Input should be a valid " + article
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return name + "_parsing", fmt.Sprintf("Input should be a valid %s, unable to parse string as %s %s", article, articleOf(article), article)
	}
	if t == intType && v != math.Trunc(v) {
		return "int_from_float", "Input should be a valid integer, got a number with a fractional part"
	}
	return "", ""
}

func articleOf(noun string) string {
	if noun == "integer" {
		return "an"
	}
	return "a"
}

func (f fields) has(name string) bool {
	raw, ok := f[name]
	return ok && string(raw) != "null"
}

func (f fields) str(name string) string {
	var v string
	_ = json.Unmarshal(f[name], &v)
	return v
}

func (f fields) number(name string, def float64) float64 {
	if !f.has(name) {
		return def
	}
	v, err := strconv.ParseFloat(strings.Trim(string(f[name]), `" `), 64)
	if err != nil {
		return def
	}
	return v
}

func (f fields) integer(name string, def int) int { return int(f.number(name, float64(def))) }

func (f fields) truth(name string) bool {
	switch strings.ToLower(strings.Trim(string(f[name]), `"`)) {
	case "true", "1", "yes", "on":
		return true
	}
	return false
}

// sub decodes an object field; nil when it is absent or something else.
func (f fields) sub(name string) fields {
	var v fields
	_ = json.Unmarshal(f[name], &v)
	return v
}

// strings reads a string or a list of strings.
func (f fields) strings(name string) []string {
	var one string
	if json.Unmarshal(f[name], &one) == nil && f.has(name) {
		return []string{one}
	}
	var many []string
	_ = json.Unmarshal(f[name], &many)
	return many
}
