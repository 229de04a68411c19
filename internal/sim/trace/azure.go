package trace

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// azureLine reads a line of Azure's public traces, like 2023-11-16 18:15:46.6805900,374,44. They say nothing of prefixes.
func azureLine(line []byte, ev *Event) error {
	fields := bytes.Split(line, []byte(","))
	if len(fields) != 3 {
		return fmt.Errorf("%d columns, want TIMESTAMP,ContextTokens,GeneratedTokens", len(fields))
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999999", string(bytes.TrimSuffix(fields[0], []byte("+00:00"))))
	if err != nil {
		return fmt.Errorf("decoding TIMESTAMP: %w", err)
	}
	prompt, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return fmt.Errorf("decoding ContextTokens: %w", err)
	}
	if ev.Output, err = strconv.Atoi(string(fields[2])); err != nil {
		return fmt.Errorf("decoding GeneratedTokens: %w", err)
	}
	if ev.At, err = sinceEpoch(at); err != nil {
		return err
	}
	ev.Parts = append(ev.Parts, sim.Part{Tokens: prompt})
	return nil
}

// sinceEpoch is a wall time as the arrivals of a trace count it.
func sinceEpoch(t time.Time) (time.Duration, error) {
	if y := t.Year(); y < 1970 || y > 2069 {
		return 0, fmt.Errorf("%v is no time of a record", t)
	}
	return time.Duration(t.UnixNano()), nil
}
