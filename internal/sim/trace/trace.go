package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// Event is one request of a trace.
type Event struct {
	At     time.Duration // arrival, since whatever the format counts from
	Parts  []sim.Part    // the prompt; a Part with ID 0 is text that nobody else sends. Reused by the next read
	Output int           // tokens of the answer; 0: it is not known
	Class  string        // what the trace calls it; "": nothing
	Left   time.Duration // how long after its arrival the client went away; 0: it did not
}

// Limits of what is taken for a trace.
const (
	maxLine   = 64 << 20                   // bytes
	maxTokens = 100_000_000                // of one prompt or answer
	maxStamp  = 100 * 365 * 24 * time.Hour // since 1970 or since the start
	maxSpan   = 366 * 24 * time.Hour       // from the first arrival to the last: more takes hours to simulate
	mostHeld  = 1 << 20                    // events that are held to put them in order: some 400 MB
	firstPart = 1 << 40                    // ids of texts in a trace are above those that sim makes up
)

// Error is a line that cannot be read.
type Error struct {
	File string
	Line int
	Err  error
}

// Error returns file, line and cause.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// skipped is the reason why a line that can be read has no request for a replay.
type skipped string

func (s skipped) Error() string { return string(s) }

// A parser turns a line without its end into an event; skipped where there is none to be had from it. Event.Parts may be appended
// to what ev holds.
type parser func(line []byte, ev *Event) error

// Format names what a file is.
type Format string

// The formats.
const (
	Mooncake Format = "mooncake" // JSON lines: timestamp (ms), input_length, output_length, hash_ids
	Azure    Format = "azure"    // CSV: TIMESTAMP, ContextTokens, GeneratedTokens
	Access   Format = "access"   // access records of the gateway, JSON lines
)

// detect finds out the format of a file by its first line that is not blank.
func detect(line []byte) (Format, error) {
	line = bytes.TrimSpace(line)
	if err := notText(line); err != nil {
		return "", err
	}
	switch {
	case bytes.HasPrefix(line, []byte("{")) && bytes.Contains(line, []byte(`"msg"`)):
		return Access, nil
	case bytes.HasPrefix(line, []byte("{")):
		return Mooncake, nil
	case isAzure(line):
		return Azure, nil
	case bytes.HasPrefix(line, []byte("time=")):
		return "", errors.New("a log in text form; access records are read in JSON (log: {format: json})")
	}
	return "", errors.New("neither JSON lines (Mooncake, access records) nor Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens)")
}

// Trace is a file that was found to be readable.
type Trace struct {
	File     string
	Format   Format
	Requests int
	Skipped  map[string]int // lines without a request to replay, by reason
	Prefixes int            // requests that say which pieces of text they have in common with others
	Prompt   int64          // tokens,
	Output   int64
	Unknown  int           // requests whose answer's length is not known
	First    time.Duration // arrival of the first request, as the format counts
	Span     time.Duration // from the first arrival to the last

	pool          string
	disorder      time.Duration // by how much an arrival may be before one that was read earlier
	bytesPerToken float64       // of access records
}

// Open reads a file from its beginning to its end. pool keeps only the access records of one pool; "" keeps all.
func Open(file, pool string) (*Trace, error) {
	f, err := openFile(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := scan(f, file, pool)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	return t, nil
}

func scan(r io.Reader, file, pool string) (*Trace, error) {
	lines, format, err := newLines(r, file, pool)
	if err != nil {
		return nil, err
	}
	t := &Trace{File: file, Format: format, Skipped: map[string]int{}, pool: pool}
	var ev Event
	var last time.Duration
	for {
		err := lines.next(&ev)
		if errors.Is(err, io.EOF) {
			break
		}
		var why skipped
		if errors.As(err, &why) {
			t.Skipped[string(why)]++
			continue
		}
		if err != nil {
			return nil, err
		}
		t.add(&ev, &last)
	}
	if t.Requests == 0 {
		return nil, fmt.Errorf("%s: no request in it%s", file, t.why())
	}
	if t.Span = last - t.First; t.Span > maxSpan {
		return nil, fmt.Errorf("%s: its arrivals lie %v apart, more than a year: is there a stamp that is wrong, or in another unit than milliseconds?", file, t.Span)
	}
	if lines.access != nil {
		t.bytesPerToken = lines.access.measured()
	}
	return t, nil
}

// add counts an event; last is the latest arrival so far.
func (t *Trace) add(ev *Event, last *time.Duration) {
	if t.Requests == 0 {
		t.First, *last = ev.At, ev.At
	}
	t.Requests++
	t.Prompt += int64(sim.Tokens(ev.Parts))
	t.Output += int64(ev.Output)
	if ev.Output == 0 {
		t.Unknown++
	}
	if len(ev.Parts) > 1 || ev.Parts[0].ID != 0 {
		t.Prefixes++
	}
	t.First = min(t.First, ev.At)
	t.disorder = max(t.disorder, *last-ev.At)
	*last = max(*last, ev.At)
}

// why lists the reasons for which lines were skipped.
func (t *Trace) why() string {
	s := ""
	for reason, n := range t.Skipped {
		s += fmt.Sprintf("; %d lines: %s", n, reason)
	}
	return s
}

// MeanOutput returns the mean tokens of the answers that are known; 1 when none is.
func (t *Trace) MeanOutput() int {
	if known := t.Requests - t.Unknown; known > 0 {
		return max(1, int(t.Output/int64(known)))
	}
	return 1
}

// lines reads events from a file, in its order.
type lines struct {
	r     *bufio.Reader
	buf   []byte // a line longer than the reader's buffer
	file  string
	n     int
	first []byte // the line that told the format, until it is read
	parse parser

	access *access // what parses, when these are access records
}

func newLines(r io.Reader, file, pool string) (*lines, Format, error) {
	l := &lines{r: bufio.NewReaderSize(r, 1<<16), file: file}
	for {
		line, err := l.line()
		if errors.Is(err, io.EOF) {
			return nil, "", fmt.Errorf("%s: it is empty", file)
		}
		if err != nil {
			return nil, "", err
		}
		if l.n == 1 {
			line = bytes.TrimPrefix(line, []byte(byteOrderMark))
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		format, err := detect(line)
		if err != nil {
			return nil, "", &Error{file, l.n, err}
		}
		l.first, l.parse = bytes.Clone(line), mooncakeLine
		switch format {
		case Azure:
			a, err := newAzure(line)
			if err != nil {
				return nil, "", &Error{file, l.n, err}
			}
			l.first, l.parse = nil, a.line // the first names the columns
		case Access:
			l.access = &access{pool: pool}
			l.parse = l.access.line
		}
		return l, format, nil
	}
}

// next fills ev with the next event; io.EOF at the end, an error that is a skipped where a line has none.
func (l *lines) next(ev *Event) error {
	for {
		line := l.first
		l.first = nil
		if line == nil {
			var err error
			if line, err = l.line(); err != nil {
				return err
			}
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		*ev = Event{Parts: ev.Parts[:0]}
		err := l.parse(line, ev)
		if err == nil {
			err = ev.check()
		}
		if err != nil {
			return &Error{l.file, l.n, err}
		}
		return nil
	}
}

// line returns the next line; what it returns is good until the next call.
func (l *lines) line() ([]byte, error) {
	l.n++
	line, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.buf = append(l.buf[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) && len(l.buf) < maxLine {
			line, err = l.r.ReadSlice('\n')
			l.buf = append(l.buf, line...)
		}
		line = l.buf
	}
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, &Error{l.file, l.n, fmt.Errorf("a line of more than %d MiB", maxLine>>20)}
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, nil
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		return nil, &Error{l.file, l.n, err}
	}
	return line, nil
}

// check holds an event to what a simulation can take.
func (e *Event) check() error {
	switch n := sim.Tokens(e.Parts); {
	case n < 1 || n > maxTokens:
		return fmt.Errorf("a prompt of %d tokens is outside 1 to %d", n, maxTokens)
	case e.Output < 0 || e.Output > maxTokens:
		return fmt.Errorf("an answer of %d tokens is outside 0 to %d", e.Output, maxTokens)
	case e.At < 0 || e.At > maxStamp:
		return fmt.Errorf("an arrival at %v is outside 0 to %v", e.At, maxStamp)
	}
	return nil
}
