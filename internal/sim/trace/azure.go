package trace

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// azure reads Azure's public traces: a line that names the columns, then lines like 2023-11-16 18:15:46.6805900,374,44. They say
// nothing of prefixes.
type azure struct{ at, prompt, answer int } // columns

// azureColumns are the names of the columns, in lower case.
func azureColumns() []string { return []string{"timestamp", "contexttokens", "generatedtokens"} }

// isAzure reports whether a first line names columns of which one is that of Azure's stamps.
func isAzure(line []byte) bool {
	return slices.Contains(fields(bytes.ToLower(line)), azureColumns()[0])
}

// fields splits a line of CSV whose fields hold no comma.
func fields(line []byte) []string {
	out := strings.Split(string(line), ",")
	for i, f := range out {
		out[i] = strings.Trim(f, " \t\r\n\"")
	}
	return out
}

// newAzure finds the columns, in whatever order they are.
func newAzure(head []byte) (*azure, error) {
	var a azure
	names := fields(bytes.ToLower(head))
	for i, column := range []*int{&a.at, &a.prompt, &a.answer} {
		if *column = slices.Index(names, azureColumns()[i]); *column < 0 || len(names) != 3 {
			return nil, fmt.Errorf("the columns are %.80q, want TIMESTAMP,ContextTokens,GeneratedTokens", head)
		}
	}
	return &a, nil
}

func (a *azure) line(line []byte, ev *Event) error {
	f := fields(line)
	if len(f) != 3 {
		return fmt.Errorf("%d columns, want TIMESTAMP,ContextTokens,GeneratedTokens", len(f))
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999999", strings.TrimSuffix(f[a.at], "+00:00"))
	if err != nil {
		return fmt.Errorf("TIMESTAMP %.40q is none, want one like 2023-11-16 18:15:46.6805900", f[a.at])
	}
	prompt, err := tokens("ContextTokens", f[a.prompt])
	if err != nil {
		return err
	}
	if ev.Output, err = tokens("GeneratedTokens", f[a.answer]); err != nil {
		return err
	}
	if ev.At, err = sinceEpoch(at); err != nil {
		return err
	}
	ev.Parts = append(ev.Parts, sim.Part{Tokens: prompt})
	return nil
}

func tokens(column, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s %.40q is no whole number", column, text)
	}
	return n, nil // out of range it is the largest there is, which is too many
}

// sinceEpoch is a wall time as the arrivals of a trace count it.
func sinceEpoch(t time.Time) (time.Duration, error) {
	if y := t.Year(); y < 1970 || y > 2069 {
		return 0, fmt.Errorf("%v is no time of a record", t)
	}
	return time.Duration(t.UnixNano()), nil
}
