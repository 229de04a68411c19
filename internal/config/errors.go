package config

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Error is one thing that is wrong with a configuration. It never holds a secret.
type Error struct {
	File   string // as it was named by the caller; a flag's name ("--endpoint") for what a flag said
	Line   int    // 1-based; 0 for a flag or a file that could not be read
	Column int    // 1-based, in characters
	Key    string // path of the key: pools[0].full.waiting; "" for the file as a whole
	Value  string // the value as it was written, quoted when it is text; "" where there is none or it must not be shown
	Rule   string // what is wrong, or what holds
	Hint   string // what to write instead; "" where there is nothing sensible to say
}

// Error returns "file:line:column: key: value: rule; hint" without the parts that are missing.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Column))
	}
	for _, part := range []string{e.Key, e.Value, e.Rule} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Errors is everything that is wrong with one configuration, sorted by position. It is never empty when it is
// returned as an error.
type Errors []*Error

// Error returns one line per error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find each of them.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// sortErrors orders by position; those at the same place keep their order.
func sortErrors(es []*Error) {
	slices.SortStableFunc(es, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
