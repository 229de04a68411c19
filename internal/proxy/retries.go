package proxy

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

// headerClientRetry is what the official clients count their retries in.
const headerClientRetry = "X-Stainless-Retry-Count"

// noteRetry records of a client's retry how far the earlier attempt had got, and how far this one got if it failed.
func (x *exchange) noteRetry() {
	key := x.identity()
	if v := x.in.Header[headerClientRetry]; len(v) > 0 && v[0] != "0" && v[0] != "" {
		x.rec.Reached = telemetry.ReachedUnknown
		if key != 0 {
			x.rec.Reached = x.p.failures.find(key)
		}
	}
	if key != 0 && telemetry.Unanswered(x.outcome) {
		x.p.failures.note(key, x.reached())
	}
}

// identity tells a request from others by its prompt, its model and its length; 0 if it has no prompt.
func (x *exchange) identity() uint64 {
	blocks := x.picked.Blocks
	if len(blocks) == 0 {
		return 0
	}
	const prime = 0x100000001b3 // FNV's
	h := blocks[len(blocks)-1].Hash ^ uint64(x.rec.BytesIn)*prime
	for i := range len(x.rec.Model) {
		h = (h ^ uint64(x.rec.Model[i])) * prime
	}
	return max(1, h)
}

// reached says how far this request got.
func (x *exchange) reached() string {
	switch {
	case x.result.Tokens > 0:
		return telemetry.ReachedTokens
	case x.sent && x.outcome != telemetry.OutcomeShed && !x.result.Drain:
		return telemetry.ReachedEndpoint
	}
	return telemetry.ReachedNothing
}
