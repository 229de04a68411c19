package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// accessRecord is what a replay needs of an access record (package telemetry writes it when the request has ended).
type accessRecord struct {
	Time     time.Time `json:"time"`
	Msg      string    `json:"msg"`
	Pool     string    `json:"pool"`
	Model    string    `json:"model"`
	Outcome  string    `json:"outcome"`
	Prompt   int       `json:"prompt_tokens"`
	Output   int       `json:"output_tokens"`
	Duration float64   `json:"duration_seconds"`
	Prefix   string    `json:"prefix"`
}

// access reads access records.
type access struct {
	pool  string
	ratio float64 // bytes per token of the pieces' lengths; 0: as long as it is not known
	bytes int64   // of prompts whose pieces are known,
	count int64   // and their tokens
}

// Reasons for which a record is not replayed.
const (
	notAccess   skipped = "other log records"
	otherPool   skipped = "records of other pools"
	notInferred skipped = "records of requests that no pool served"
)

func (a *access) line(line []byte, ev *Event) error {
	var r accessRecord
	if err := json.Unmarshal(line, &r); err != nil {
		return decoding(err)
	}
	if why := a.skip(&r); why != "" {
		return why
	}
	if r.Prompt < 0 || r.Output < 0 {
		return fmt.Errorf("prompt_tokens %d or output_tokens %d is negative", r.Prompt, r.Output)
	}
	if !(r.Duration >= 0 && r.Duration <= maxStamp.Seconds()) {
		return fmt.Errorf("duration_seconds %g is no duration", r.Duration)
	}
	end, err := sinceEpoch(r.Time)
	if err != nil {
		return err
	}
	took := time.Duration(r.Duration * float64(time.Second))
	ev.At, ev.Output, ev.Class = max(0, end-took), r.Output, r.Model
	switch r.Outcome {
	case "client_cancelled":
		ev.Left = max(took, time.Nanosecond)
		ev.Output = 0 // what it would have become is not known
	case "ok":
		ev.Output = max(1, r.Output)
	default: // it broke off, or got no place: what there was of the answer is not what was asked for
		ev.Output = 0
	}
	return a.parts(r.Prefix, max(1, r.Prompt), ev)
}

// skip returns why r is not replayed; "" when it is.
func (a *access) skip(r *accessRecord) skipped {
	switch {
	case r.Msg != "request":
		return notAccess
	case r.Pool == "" || r.Outcome == "client_error" || r.Outcome == "too_long":
		return notInferred
	case a.pool != "" && r.Pool != a.pool:
		return otherPool
	case r.Prompt == 0 && r.Prefix == "":
		return notInferred
	}
	return ""
}

// parts turns the prompt's pieces, "hash:bytes hash:bytes ...", into texts of so many tokens. Equal pieces must have equal tokens
// wherever they are, so that all are measured with one ratio; what is over or under is text of the prompt's own.
func (a *access) parts(prefix string, tokens int, ev *Event) error {
	end, at := 0, 0
	for piece := range strings.FieldsSeq(prefix) {
		hash, size, ok := strings.Cut(piece, ":")
		id, err := strconv.ParseUint(hash, 16, 64)
		n, err2 := strconv.Atoi(size)
		if !ok || err != nil || err2 != nil || n < 1 || n > maxTokens {
			return fmt.Errorf("prefix has a piece %.40q, want hash:bytes", piece)
		}
		end += n
		next := int(float64(end) / a.bytesPerToken())
		if next > at && next <= tokens {
			ev.Parts = append(ev.Parts, sim.Part{ID: partID(id), Tokens: next - at})
			at = next
		}
	}
	if at < tokens {
		ev.Parts = append(ev.Parts, sim.Part{Tokens: tokens - at})
	}
	if end > 0 && a.ratio == 0 {
		a.bytes, a.count = a.bytes+int64(end), a.count+int64(tokens)
	}
	return nil
}

// bytesPerToken is the ratio of the whole file, or an estimate until that is known.
func (a *access) bytesPerToken() float64 {
	if a.ratio > 0 {
		return a.ratio
	}
	return 4
}

// measured returns the ratio over what was read.
func (a *access) measured() float64 {
	if a.count > 0 && a.bytes > 0 {
		return max(1, float64(a.bytes)/float64(a.count))
	}
	return 4
}
