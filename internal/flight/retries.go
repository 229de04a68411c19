package flight

import (
	"sync"

	"pointsman.dev/pointsman/internal/telemetry"
)

// A client that sends a request again does not say what became of the first one. How far that one had got is remembered here
// for requests that ended without their answer, so that work that was done twice can be seen.

// maxFailures bounds how many failed requests are remembered. A newer one takes the place of an older one at random.
const maxFailures = 4096

// failures remember how far requests had got that ended without their answer. The zero value is ready.
type failures struct {
	mu    sync.Mutex
	table []unanswered // maxFailures, by key; made when first needed
}

// unanswered is one of them.
type unanswered struct {
	key     uint64
	reached string // one of telemetry.Reaches
}

func (f *failures) note(key uint64, reached string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.table == nil {
		f.table = make([]unanswered, maxFailures)
	}
	f.table[key%maxFailures] = unanswered{key, reached}
}

// find returns how far the request of this key had got, ReachedUnknown if that is not remembered.
func (f *failures) find(key uint64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.table != nil {
		if e := f.table[key%maxFailures]; e.key == key {
			return e.reached
		}
	}
	return telemetry.ReachedUnknown
}

// HeaderClientRetry is what the official clients count their retries in.
const HeaderClientRetry = "X-Stainless-Retry-Count"

// noteRetry records of a client's retry how far the earlier attempt had got, and how far this one got if it failed.
func (f *Flight) noteRetry() {
	key := f.identity()
	if f.Retried != "0" && f.Retried != "" {
		f.Rec.Reached = telemetry.ReachedUnknown
		if key != 0 {
			f.Rec.Reached = f.Desk.Memory.failures.find(key)
		}
	}
	if key != 0 && telemetry.Unanswered(f.Outcome) {
		f.Desk.Memory.failures.note(key, f.reached())
	}
}

// identity tells a request from others by its prompt, its model and its length; 0 if it has no prompt.
func (f *Flight) identity() uint64 {
	blocks := f.Picked.Blocks
	if len(blocks) == 0 {
		return 0
	}
	const prime = 0x100000001b3 // FNV's
	h := blocks[len(blocks)-1].Hash ^ uint64(f.Rec.BytesIn)*prime
	for i := range len(f.Rec.Model) {
		h = (h ^ uint64(f.Rec.Model[i])) * prime
	}
	return max(1, h)
}

// reached says how far this request got.
func (f *Flight) reached() string {
	switch {
	case f.Result.Tokens > 0:
		return telemetry.ReachedTokens
	case f.Sent && f.Outcome != telemetry.OutcomeShed && !f.Result.Drain:
		return telemetry.ReachedEndpoint
	}
	return telemetry.ReachedNothing
}
