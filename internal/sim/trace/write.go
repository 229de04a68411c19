package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"pointsman.dev/pointsman/internal/sim"
)

// hashBits is what a number of JSON keeps of a name.
const hashBits = 53

// Write writes the requests in order of arrival as lines of Mooncake's format: time since the first, lengths, and the names of
// pieces that others may share (cut to 53 bits) with their lengths. Nothing else of the file gets there: no model, pool, endpoint,
// outcome or wall time. The answers of requests that did not get theirs have the mean length.
func (t *Trace) Write(w io.Writer) error {
	f, err := openFile(t.File)
	if err != nil {
		return err
	}
	defer f.Close()
	events, err := t.events(f)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	var ev Event
	for {
		err := events.read(&ev)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the trace: %w", err)
		}
		if err := enc.Encode(t.anonymous(&ev)); err != nil {
			return fmt.Errorf("writing the trace: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing the trace: %w", err)
	}
	return nil
}

func (t *Trace) anonymous(ev *Event) mooncakeRequest {
	at := math.Round(float64((ev.At - t.First).Microseconds())) / 1e3
	prompt, answer := sim.Tokens(ev.Parts), ev.Output
	if answer == 0 {
		answer = t.MeanOutput()
	}
	in, out := float64(prompt), float64(answer)
	r := mooncakeRequest{Timestamp: &at, Input: &in, Output: &out, Hashes: []uint64{}}
	for _, p := range ev.Parts {
		if p.ID != 0 { // what nobody shares is the rest of input_length
			r.Hashes = append(r.Hashes, p.ID&(1<<hashBits-1))
			r.BlockTokens = append(r.BlockTokens, p.Tokens)
		}
	}
	return r
}
