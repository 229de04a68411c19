package llmapi

import (
	"bytes"
	"mime"
)

const (
	maxBoundary   = 256 // bytes of the first line; RFC 2046 allows 70
	maxFormHeader = 8 << 10
	// nominalAudio is what an upload counts for in prompt bytes: the window of the
	// common transcription model is 1500 positions, whatever the file's length.
	nominalAudio = 6000
)

type formState uint8

const (
	formFirst  formState = iota // the first line, which tells the boundary
	formHeader                  // a part's header
	formValue                   // a part's content
	formNext                    // behind a delimiter
	formEnd
)

// A form reads multipart/form-data while it is received: the fields that decide
// something, and nothing of the files.
type form struct {
	state formState
	line  []byte // what is collected: first line, header, or a field's value
	delim []byte // CRLF, two hyphens, boundary
	match int    // bytes of delim seen so far
	fresh bool   // the match began before the value's first byte
	field string // the current part's name, when its value matters
	seen  []string
	dash  bool // the delimiter was followed by a hyphen
}

func (f *form) reset() {
	*f = form{line: f.line[:0], delim: f.delim[:0], seen: f.seen[:0]}
}

// write takes the next bytes, which begin at offset off of the body.
func (f *form) write(p []byte, off int64, s *Scanner) *Error {
	for i := 0; i < len(p); {
		switch f.state {
		case formFirst, formHeader:
			n := bytes.IndexByte(p[i:], '\n')
			if n < 0 {
				n = len(p) - i - 1
			}
			f.line = append(f.line, p[i:i+n+1]...)
			i += n + 1
			if e := f.lines(s, off+int64(i)); e != nil {
				return e
			}
		case formValue:
			i += f.value(p[i:])
			if len(f.line) > MaxModel {
				return badForm("the form field " + f.field + " is too long")
			}
			if f.match == len(f.delim) {
				if f.fresh {
					return badForm("a form part has no content, not even an empty one") // which readers take differently
				}
				f.match, f.state = 0, formNext
				if e := f.endField(s); e != nil {
					return e
				}
			}
		case formNext:
			if e := f.behind(p[i]); e != nil {
				return e
			}
			i++
		case formEnd:
			return nil // what follows the last delimiter means nothing
		}
	}
	return nil
}

// lines acts on a first line or a header that is complete.
func (f *form) lines(s *Scanner, at int64) *Error {
	if f.state == formFirst {
		if len(f.line) > maxBoundary {
			return badForm("the form's boundary line is too long")
		}
		line, whole := bytes.CutSuffix(f.line, []byte("\r\n"))
		if !whole {
			if bytes.HasSuffix(f.line, []byte("\n")) {
				return badForm("the form does not begin with its boundary")
			}
			return nil
		}
		f.line = f.line[:0]
		if len(line) == 0 {
			return nil // an empty preamble
		}
		if len(line) < 3 || line[0] != '-' || line[1] != '-' {
			return badForm("the form does not begin with its boundary")
		}
		f.delim = append(append(f.delim[:0], "\r\n"...), line...)
		f.state = formHeader
		return nil
	}
	if len(f.line) > maxFormHeader {
		return badForm("a form part's header is too long")
	}
	if n := bytes.Count(f.line, []byte("\n")); n != bytes.Count(f.line, []byte("\r\n")) {
		return badForm("a form part's header has a bare line feed") // which readers take differently
	}
	if !bytes.HasSuffix(f.line, []byte("\r\n\r\n")) && !bytes.Equal(f.line, []byte("\r\n")) {
		return nil
	}
	return f.beginPart(s, at)
}

// beginPart reads a part's header; the value begins at offset at of the body.
func (f *form) beginPart(s *Scanner, at int64) *Error {
	name := fieldName(f.line)
	// The line break behind the header may be taken for the delimiter's.
	f.line, f.state, f.match, f.fresh, f.field = f.line[:0], formValue, 2, true, ""
	switch name {
	case "file":
		s.req.PromptBytes += nominalAudio
		return nil
	case "model":
		s.req.ModelStart = at
	case "stream", "stream_include_usage", "max_completion_tokens", "prompt":
	default:
		return nil
	}
	for _, seen := range f.seen {
		if seen == name {
			return duplicate(name)
		}
	}
	f.field, f.seen = name, append(f.seen, name)
	return nil
}

// fieldName is the name in a part's Content-Disposition.
func fieldName(header []byte) string {
	for line := range bytes.SplitSeq(header, []byte("\r\n")) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if ok && bytes.EqualFold(bytes.TrimSpace(key), []byte("content-disposition")) {
			if _, params, err := mime.ParseMediaType(string(value)); err == nil {
				return params["name"]
			}
		}
	}
	return ""
}

// value takes bytes of a part's content up to and with the delimiter, and returns
// how many it took. The delimiter has one CR, its first byte, so a match that
// breaks off need not be looked at again.
func (f *form) value(p []byte) int {
	i := 0
	for i < len(p) && f.match < len(f.delim) {
		if f.match == 0 {
			n := bytes.IndexByte(p[i:], '\r')
			if n < 0 {
				f.keep(p[i:])
				return len(p)
			}
			f.keep(p[i : i+n])
			i += n + 1
			f.match = 1
			continue
		}
		if p[i] == f.delim[f.match] {
			f.match++
			i++
			continue
		}
		if f.fresh {
			f.keep(f.delim[2:f.match])
		} else {
			f.keep(f.delim[:f.match])
		}
		f.match, f.fresh = 0, false
	}
	return i
}

// keep collects the value of a field that matters; a prompt only counts.
func (f *form) keep(p []byte) {
	if f.field == "" || len(f.line) > MaxModel {
		return
	}
	if f.field == "prompt" {
		p = p[:min(len(p), MaxModel-len(f.line))]
	}
	f.line = append(f.line, p[:min(len(p), MaxModel+1-len(f.line))]...)
}

func (f *form) endField(s *Scanner) *Error {
	value := f.line
	f.line = f.line[:0]
	switch f.field {
	case "model":
		s.model = append(s.model[:0], value...)
		s.req.ModelEnd = s.req.ModelStart + int64(len(value))
	case "stream":
		s.want = wantStream
		s.endBool(string(value))
	case "stream_include_usage":
		s.want = wantIncludeUsage
		s.endBool(string(value))
	case "max_completion_tokens":
		if n, ok := number(value); ok {
			s.setNumber(wantMax, n)
		}
	case "prompt":
		s.req.PromptBytes += len(value)
	}
	e := s.err
	s.err = nil
	return e
}

// behind takes the bytes behind a delimiter: two hyphens end the form, a line
// break begins a part.
func (f *form) behind(c byte) *Error {
	switch {
	case c == '-' && f.dash:
		f.state = formEnd
	case c == '-':
		f.dash = true
		return nil
	case c == '\n':
		f.state, f.line = formHeader, f.line[:0]
	case c == '\r' || c == ' ' || c == '\t':
	default:
		return badForm("malformed form delimiter")
	}
	f.dash = false
	return nil
}

func (f *form) close() *Error {
	if f.state == formEnd {
		return nil
	}
	if len(f.delim) == 0 && len(f.line) == 0 {
		return badForm("the request body is empty, expected multipart/form-data")
	}
	return badForm("the form ends early")
}

func badForm(msg string) *Error { return refuse(ReasonBadForm, "", msg) }
