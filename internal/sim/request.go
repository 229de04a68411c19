package sim

import (
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// Request is what a client sends. The Sim keeps Parts until it ends; they must not be changed meanwhile.
type Request struct {
	Parts     []Part        // the prompt; equal beginnings are equal text
	Output    int           // tokens of the answer, at least 1
	Answer    uint64        // id of the answer's text, for a next turn; 0: unique
	MaxTokens int           // what the client allows, which is all that a gateway sees of Output; 0: it does not say
	Class     string        // a word for reports: chat, document
	SLO       time.Duration // within which the first token must come; 0: whenever
	Patience  time.Duration // after which the client goes away if the answer is not complete; 0: never
	Tag       uint64        // the caller's, returned in the Record

	Then func(*Record) // called when it ended, after the Sink; nil: nothing follows
}

// Outcome is how a request ended.
type Outcome uint8

// The outcomes. Unfinished ones were still under way when the run ended.
const (
	Done Outcome = iota
	Cancelled
	Refused // no endpoint could take it
	Unfinished
	Failed // the endpoint went down
)

// String returns the word of reports.
func (o Outcome) String() string {
	return [...]string{"done", "cancelled", "refused", "unfinished", "failed"}[o]
}

// Record is what became of one request. Times are since the start of the run; First and End are 0 when they never came.
type Record struct {
	ID       uint64 // counts from 1 in order of arrival
	Tag      uint64
	Class    string
	At       time.Duration
	First    time.Duration // first token
	End      time.Duration
	SLO      time.Duration
	Outcome  Outcome
	Gateway  int
	Endpoint int // -1: none
	Reason   route.Reason
	Prompt   int // tokens
	Output   int // tokens emitted
	Expected int // prompt tokens that the gateway expected in the endpoint's cache
	Cached   int // prompt tokens that were there
	Answer   Part
}

// TTFT returns the time to the first token; 0 when there was none.
func (r *Record) TTFT() time.Duration { return max(0, r.First-r.At) }

// TPOT returns the mean time per output token after the first; 0 for answers of one token and those that never ended.
func (r *Record) TPOT() time.Duration {
	if r.Output < 2 || r.End == 0 {
		return 0
	}
	return (r.End - r.First) / time.Duration(r.Output-1)
}

// Good reports whether the request is within its SLO: complete, first token in time, tokens not slower than tpot (0: any).
func (r *Record) Good(tpot time.Duration) bool {
	return r.Outcome == Done && !r.late() && (tpot == 0 || r.TPOT() <= tpot)
}

// late reports whether the first token came after its time, or had not come by then.
func (r *Record) late() bool {
	return r.SLO > 0 && (r.First == 0 && r.End-r.At >= r.SLO || r.TTFT() > r.SLO)
}

// Counts reports whether a judgement of good or not is due: a client that went away does not count, unless what it had seen until then was
// late already.
func (r *Record) Counts(tpot time.Duration) bool {
	if r.Outcome != Cancelled {
		return true
	}
	return r.late() || tpot > 0 && r.TPOT() > tpot
}

// flight is a request under way.
type flight struct {
	req  *Request
	rec  Record
	gate *gateway
	node *Node
	rank int
	seq  engine.Seq

	chain  []prefix.Block
	hashes []uint64

	pick    route.Pick
	ticket  ledger.Ticket
	prompt  int32          // tokens, as the gateway estimates them
	hit     int32          // tokens expected in the cache
	promise prefix.Promise // until the prompt is computed
	answer  int32          // tokens, expected
	pending int            // tokens that the books do not know
	flushed time.Duration
	live    bool // in the engine
	unsure  bool
	remote  []remote // in the books of the other gateways
	untold  int      // tokens that these do not know
	refs    int      // events under way that need it
	tried   []int32  // endpoints that refused it
}
