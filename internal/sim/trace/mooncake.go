package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// mooncakeBlock is how many tokens a hash id stands for where the line does not say.
const mooncakeBlock = 512

// mooncakeRequest is a line of Mooncake's format. BlockTokens is an addition of ours: how many tokens each hash id stands for.
type mooncakeRequest struct {
	Timestamp   *float64 `json:"timestamp"`    // ms since the start
	Input       *float64 `json:"input_length"` // whole, but some programs write 600.0
	Output      *float64 `json:"output_length"`
	Hashes      []uint64 `json:"hash_ids"`
	BlockTokens []int    `json:"block_tokens,omitempty"`
}

func mooncakeLine(line []byte, ev *Event) error {
	var r mooncakeRequest
	if err := json.Unmarshal(line, &r); err != nil {
		return decoding(err)
	}
	if err := r.check(); err != nil {
		return err
	}
	ev.At = time.Duration(math.Round(*r.Timestamp * 1e6))
	ev.Output = int(*r.Output)
	return r.parts(ev)
}

// check reports what is missing or out of range.
func (r *mooncakeRequest) check() error {
	switch {
	case r.Timestamp == nil && r.Input == nil, r.Input == nil && r.Output == nil:
		return errors.New("neither an access record nor a line of Mooncake's format, which has timestamp (ms), input_length, output_length and hash_ids")
	case r.Timestamp == nil:
		return fmt.Errorf("timestamp is missing")
	case r.Input == nil:
		return fmt.Errorf("input_length is missing")
	case r.Output == nil:
		return fmt.Errorf("output_length is missing")
	}
	switch {
	case !(*r.Timestamp >= 0 && *r.Timestamp < maxStamp.Seconds()*1e3):
		return fmt.Errorf("timestamp %g is outside 0 to %g: it counts milliseconds", *r.Timestamp, maxStamp.Seconds()*1e3)
	case !(*r.Input >= 1 && *r.Input <= maxTokens) || *r.Input != math.Trunc(*r.Input):
		return fmt.Errorf("input_length %g is no whole number from 1 to %d", *r.Input, maxTokens)
	case !(*r.Output >= 0 && *r.Output <= maxTokens) || *r.Output != math.Trunc(*r.Output):
		return fmt.Errorf("output_length %g is no whole number from 0 to %d", *r.Output, maxTokens)
	}
	return nil
}

// parts names the pieces of the prompt.
func (r *mooncakeRequest) parts(ev *Event) error {
	if n := len(r.BlockTokens); n > 0 && n != len(r.Hashes) {
		return fmt.Errorf("block_tokens has %d entries for %d hash_ids", n, len(r.Hashes))
	}
	left := int(*r.Input)
	for i, h := range r.Hashes {
		n := mooncakeBlock
		if len(r.BlockTokens) > 0 {
			n = r.BlockTokens[i]
		}
		switch {
		case n < 1:
			return fmt.Errorf("block_tokens: %d is below 1", n)
		case left < 1 || len(r.BlockTokens) > 0 && n > left:
			return fmt.Errorf("%d hash_ids are more than %g tokens have", len(r.Hashes), *r.Input)
		}
		n = min(n, left)
		ev.Parts = append(ev.Parts, sim.Part{ID: partID(h), Tokens: n})
		left -= n
	}
	if left > 0 {
		ev.Parts = append(ev.Parts, sim.Part{Tokens: left})
	}
	return nil
}

// partID maps a trace's name of a piece of text to one that no simulation makes up.
func partID(h uint64) uint64 {
	if h >= math.MaxUint64-firstPart {
		return h
	}
	return h + firstPart
}
