package vllmsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// appendJSONString appends s as a JSON string the way the server writes it: no HTML escapes, non-ASCII as is.
func appendJSONString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, s[start:]...), '"')
}

// appendFloat appends v as Python's repr does: 1.0, 0.25, 1e-05, 1.79619219489e+09 with metrics=true.
func appendFloat(b []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "inf"...)
	case math.IsNaN(v):
		return append(b, "nan"...)
	}
	abs := math.Abs(v)
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	n := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, 64)
	if !bytes.ContainsRune(b[n:], '.') {
		b = append(b, '.', '0')
	}
	return b
}

// jsonSyntax finds the first error in body as Python's json module reports it: its text and the position in characters.
// It is called only for bodies that encoding/json refuses.
func jsonSyntax(body []byte) (msg string, pos int) {
	p := pyParser{b: body}
	p.space()
	p.value()
	if p.msg == "" {
		if p.space(); p.i < len(p.b) {
			p.fail("Extra data", p.i)
		}
	}
	if p.msg == "" {
		p.fail("Expecting value", 0)
	}
	return p.msg, utf8.RuneCount(body[:min(p.at, len(body))])
}

type pyParser struct {
	b     []byte
	i     int
	depth int
	msg   string
	at    int
}

// maxNesting is where encoding/json gives up too.
const maxNesting = 10000

func (p *pyParser) fail(msg string, at int) bool {
	if p.msg == "" {
		p.msg, p.at = msg, at
	}
	return false
}

func (p *pyParser) space() {
	for p.i < len(p.b) && strings.IndexByte(" \t\n\r", p.b[p.i]) >= 0 {
		p.i++
	}
}

func (p *pyParser) peek(c byte) bool { return p.i < len(p.b) && p.b[p.i] == c }

func (p *pyParser) value() bool {
	if p.i >= len(p.b) {
		return p.fail("Expecting value", p.i)
	}
	switch c := p.b[p.i]; {
	case c == '"':
		return p.str()
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	for _, word := range []string{"true", "false", "null", "NaN", "Infinity"} {
		if bytes.HasPrefix(p.b[p.i:], []byte(word)) {
			p.i += len(word)
			return true
		}
	}
	return p.fail("Expecting value", p.i)
}

func (p *pyParser) number() bool {
	start := p.i
	for p.i < len(p.b) && strings.IndexByte("+-.eE0123456789", p.b[p.i]) >= 0 {
		p.i++
	}
	if !json.Valid(p.b[start:p.i]) {
		return p.fail("Expecting value", start)
	}
	return true
}

func (p *pyParser) str() bool {
	start := p.i
	for p.i++; p.i < len(p.b); p.i++ {
		switch c := p.b[p.i]; {
		case c == '"':
			p.i++
			return true
		case c == '\\':
			p.i++
			if p.i < len(p.b) && strings.IndexByte(`"\/bfnrtu`, p.b[p.i]) < 0 {
				return p.fail(`Invalid \\escape`, p.i-1)
			}
		case c < 0x20:
			return p.fail("Invalid control character at", p.i)
		}
	}
	return p.fail("Unterminated string starting at", start)
}

func (p *pyParser) object() bool {
	return p.list('}', func() bool {
		if !p.peek('"') {
			return p.fail("Expecting property name enclosed in double quotes", p.i)
		}
		if !p.str() {
			return false
		}
		if p.space(); !p.peek(':') {
			return p.fail("Expecting ':' delimiter", p.i)
		}
		p.i++
		p.space()
		return p.value()
	})
}

func (p *pyParser) array() bool { return p.list(']', p.value) }

// list reads comma-separated items up to end; the opening bracket is next. A comma must be followed by an item.
func (p *pyParser) list(end byte, item func() bool) bool {
	if p.depth++; p.depth > maxNesting {
		return p.fail("Expecting value", p.i)
	}
	defer func() { p.depth-- }()
	p.i++
	if p.space(); p.peek(end) {
		p.i++
		return true
	}
	for {
		p.space()
		if !item() {
			return false
		}
		if p.space(); p.peek(end) {
			p.i++
			return true
		}
		if !p.peek(',') {
			return p.fail("Expecting ',' delimiter", p.i)
		}
		p.i++
	}
}

// pyRepr writes a JSON value as Python's repr would: old servers quote the input of a schema error so.
func pyRepr(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "None"
	}
	switch raw[0] {
	case '{', '[':
		return pyReprContainer(raw)
	case '"':
		var s string
		_ = json.Unmarshal(raw, &s)
		return pyQuote(s)
	}
	switch string(raw) {
	case "null":
		return "None"
	case "true":
		return "True"
	case "false":
		return "False"
	}
	return string(raw)
}

func pyReprContainer(raw json.RawMessage) string {
	var parts []string
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token()
	for dec.More() {
		key := ""
		if raw[0] == '{' {
			tok, _ := dec.Token()
			key = pyQuote(fmt.Sprint(tok)) + ": "
		}
		var v json.RawMessage
		if dec.Decode(&v) != nil {
			break
		}
		parts = append(parts, key+pyRepr(v))
	}
	return string(raw[0]) + strings.Join(parts, ", ") + string(raw[0]+2)
}

// pyShort is how newer servers show the input: containers by their size only.
func pyShort(raw json.RawMessage, extra int) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) > 0 && raw[0] == '{' {
		var m map[string]json.RawMessage
		_ = json.Unmarshal(raw, &m)
		return fmt.Sprintf("'<dict of %d items>'", len(m)+extra)
	}
	if len(raw) > 0 && raw[0] == '[' {
		var l []json.RawMessage
		_ = json.Unmarshal(raw, &l)
		return fmt.Sprintf("'<list of %d items>'", len(l))
	}
	if len(raw) > 0 && raw[0] == '"' {
		return pyRepr(raw)
	}
	return "'" + pyRepr(raw) + "'"
}

func pyQuote(s string) string {
	quote := "'"
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = `"`
	}
	s = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`, quote, `\`+quote).Replace(s)
	return quote + s + quote
}
