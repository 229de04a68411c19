package engine

import "errors"

// Refusals of Add. The first two are the model server's 503 answers (queue full, prefill token backlog); the others are
// caller errors that its front end answers with 400.
var (
	ErrQueueFull = errors.New("adding sequence: too many requests wait or run")
	ErrBacklog   = errors.New("adding sequence: too many prompt tokens wait for prefill")
	ErrTooLong   = errors.New("adding sequence: the prompt leaves no room for a token in the window")
	ErrEmpty     = errors.New("adding sequence: the prompt is empty")
	ErrActive    = errors.New("adding sequence: it was added before and has not ended")
)

// PauseMode says what Pause does with requests that run.
type PauseMode uint8

// Modes of Pause as in vLLM's /pause?mode=.
const (
	PauseWait  PauseMode = iota // running ones finish, nothing is admitted; Paused turns true when the last has ended
	PauseKeep                   // everything stands still at once; running ones are preempted and the cache is cleared
	PauseAbort                  // running and waiting ones end with reason Aborted
)

// Engine is one engine; create it with New. See the package comment for ownership.
type Engine struct {
	cfg Config
}

type seqState struct{}

// New returns an idle engine with an empty cache. Zero fields of cfg take their defaults; a window larger than the blocks hold
// is cut to what they hold. Check cfg with Validate where it comes from a user.
func New(cfg Config) *Engine { return &Engine{cfg: cfg.withDefaults()} }

// Config returns the configuration with the defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// CanAdmit reports whether n sequences would be refused now: nil, ErrQueueFull or ErrBacklog (the front end checks a request
// with n answers as a whole). It books a refusal in the stats.
func (e *Engine) CanAdmit(n int) error { return nil }

// Add queues s. It refuses with one of the Err values, unwrapped.
func (e *Engine) Add(s *Seq) error { return nil }

// Abort ends s on behalf of its client: no further Output, its blocks are free before the next Schedule decides, and it is not
// booked as done. It reports whether s was active.
func (e *Engine) Abort(s *Seq) bool { return false }

// Schedule decides the next step; false when there is nothing to do (idle, paused or asleep) or a step is in flight.
func (e *Engine) Schedule() (Step, bool) { return Step{}, false }

// Finish ends the step in flight and returns its outputs in batch order. The slice is valid until the next Finish. A step
// that is not the one in flight returns nil.
func (e *Engine) Finish(st Step) []Output { return nil }

// Stats returns the gauges and counters as of the last finished step.
func (e *Engine) Stats() Stats { return Stats{} }

// Idle reports whether no sequence waits or runs.
func (e *Engine) Idle() bool { return true }

// ResetPrefixCache empties the block cache; false, and nothing changes, while blocks are in use (as /reset_prefix_cache).
func (e *Engine) ResetPrefixCache() bool { return false }

// Pause stops the engine as mode says; new sequences are queued. It returns the outputs of PauseAbort (Finished: Aborted),
// valid until the next Finish or Pause.
func (e *Engine) Pause(mode PauseMode) []Output { return nil }

// Paused reports whether a pause has taken full effect.
func (e *Engine) Paused() bool { return false }

// Resume ends a pause or a sleep.
func (e *Engine) Resume() {}

// Sleep frees the cache and stops the engine until Resume: requests are queued and nothing moves, the gauges included
// (as /sleep?level=1). Running ones end with reason Aborted, returned as by Pause.
func (e *Engine) Sleep() []Output { return nil }

// Asleep reports whether the engine sleeps.
func (e *Engine) Asleep() bool { return false }

// PromptLen is the number of prompt tokens, valid after Add.
func (s *Seq) PromptLen() int { return s.PromptTokens }

// Outputs is the number of tokens emitted so far.
func (s *Seq) Outputs() int { return 0 }

// BlockHash is the hash of full block i of an active sequence, as seen in BlockEvent.
func (s *Seq) BlockHash(i int) uint64 { return 0 }
