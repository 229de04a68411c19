package scrape

import (
	"bytes"
	"errors"
	"strconv"
)

// The text exposition format, one line: name{label="value",...} value [timestamp]. Values of labels escape
// backslash, quote and newline.

var errLine = errors.New("malformed line")

// sample is one line, cut into pieces that point into the page.
type sample struct {
	name   []byte
	labels []byte // what is between the braces
	value  float64
}

// label returns the value of one label, still escaped, and whether it is there. The labels were checked by
// cutLabels before.
func (s *sample) label(name string) ([]byte, bool) {
	rest := s.labels
	for len(rest) > 0 {
		key, val, tail, ok := nextLabel(rest)
		if !ok {
			return nil, false
		}
		if string(key) == name {
			return val, true
		}
		rest = tail
	}
	return nil, false
}

// nextLabel cuts the first label from a list: key, value between the quotes, and what follows the comma.
func nextLabel(b []byte) (key, val, tail []byte, ok bool) {
	b = skipBlank(b)
	eq := bytes.IndexByte(b, '=')
	if eq <= 0 {
		return nil, nil, nil, false
	}
	key = trimBlank(b[:eq])
	if !validLabelName(key) {
		return nil, nil, nil, false
	}
	b = skipBlank(b[eq+1:])
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, nil, false
	}
	end := closingQuote(b[1:])
	if end < 0 {
		return nil, nil, nil, false
	}
	val, b = b[1:1+end], skipBlank(b[end+2:])
	if len(b) == 0 {
		return key, val, nil, true
	}
	if b[0] != ',' {
		return nil, nil, nil, false
	}
	return key, val, skipBlank(b[1:]), true
}

// closingQuote returns the index of the first quote that no backslash escapes, or -1.
func closingQuote(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return -1
}

// closingBrace returns the index of the brace that ends a label list, or -1; braces in values do not count.
func closingBrace(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '}':
			return i
		case '"':
			end := closingQuote(b[i+1:])
			if end < 0 {
				return -1
			}
			i += end + 1
		}
	}
	return -1
}

// cut splits a line whose name ends at the index end into its pieces and checks them.
func (s *sample) cut(line []byte, end int) error {
	s.name, s.labels = line[:end], nil
	rest := skipBlank(line[end:])
	if len(rest) > 0 && rest[0] == '{' {
		brace := closingBrace(rest[1:])
		if brace < 0 {
			return errLine
		}
		s.labels, rest = rest[1:1+brace], rest[brace+2:]
		for l := skipBlank(s.labels); len(l) > 0; {
			_, _, tail, ok := nextLabel(l)
			if !ok {
				return errLine
			}
			l = tail
		}
	}
	return s.parseValue(trimBlank(rest))
}

// parseValue reads the value and an optional timestamp.
func (s *sample) parseValue(b []byte) error {
	if i := blankIndex(b); i >= 0 {
		stamp := skipBlank(b[i:])
		if _, err := strconv.ParseInt(string(stamp), 10, 64); err != nil {
			return errLine
		}
		b = b[:i]
	}
	// ParseFloat also takes Go's hexadecimal and underscored forms, which the format does not have.
	if len(b) == 0 || len(b) > 64 || bytes.ContainsAny(b, "pPxX_") {
		return errLine
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return errLine
	}
	s.value = v
	return nil
}

// nameEnd returns the length of the metric name that a line starts with.
func nameEnd(line []byte) int {
	for i, c := range line {
		if c != '_' && c != ':' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return i
		}
	}
	return len(line)
}

func validLabelName(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	for i, c := range b {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func skipBlank(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

func trimBlank(b []byte) []byte {
	b = skipBlank(b)
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

func blankIndex(b []byte) int {
	for i, c := range b {
		if c == ' ' || c == '\t' {
			return i
		}
	}
	return -1
}
