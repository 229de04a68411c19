package config

import (
	"log/slog"
	"strconv"
)

// The words of the file for each closed set of values, by the value's number. Functions, not variables: a package
// holds no mutable state.

func policies() []string   { return []string{"auto", "prefix", "least_request"} }
func gates() []string      { return []string{"default", "strict", "off"} }
func whenFulls() []string  { return []string{"seconds", "requests"} }
func cutStreams() []string { return []string{"both", "error_event", "abort"} }
func logFormats() []string { return []string{"text", "json"} }
func logLevels() []string  { return []string{"debug", "info", "warn", "error"} }

// levelOf returns the slog level of an index into logLevels.
func levelOf(i int) slog.Level { return slog.Level(4*i) + slog.LevelDebug }

// levelWord returns the word of a level that levelOf made.
func levelWord(l slog.Level) string { return word(logLevels, int(l-slog.LevelDebug)/4) }

// word returns the i-th of words, or its number when there is none, so that a wrong value shows itself in a log.
func word(words func() []string, i int) string {
	if w := words(); i >= 0 && i < len(w) {
		return w[i]
	}
	return strconv.Itoa(i)
}
