package health

import "time"

// State is what an endpoint is known to be.
type State uint8

// States.
const (
	Unknown  State = iota // nothing was heard of it yet
	Warming               // it answered, no request has succeeded yet
	Ready                 // in use
	Ejected               // it failed; back after a trial
	Draining              // it refuses new work and finishes what it has
	Asleep                // its engine sleeps: requests would hang
	Gone                  // it went away: /health 503 or a closed port after it had been ready
)

// stateNames are metric labels.
var stateNames = [...]string{"unknown", "warming", "ready", "ejected", "draining", "asleep", "gone"}

// NumStates is the number of states.
const NumStates = len(stateNames)

// String returns the metric label of the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Admission says how far an endpoint may be used. The order is that of route's constants.
type Admission uint8

// Admissions.
const (
	Normal     Admission = iota // use it
	Trial                       // one request may try it now; call Trying when it was picked
	Avoid                       // only when no other is left
	LastResort                  // only when everything looks dead
)

// Kind says how a request failed.
type Kind uint8

// Kinds of failure.
const (
	KindConnect Kind = iota // no connection: nothing was sent
	KindReset               // the connection broke before an answer
	KindCut                 // the answer broke off
	KindStatus              // 5xx
	KindTimeout             // a limit ran out
	KindDrain               // the answer of a draining engine
)

// Machine is the state of one endpoint.
type Machine struct{ state State }

// New returns a machine in state Unknown.
func New(now time.Duration) *Machine { return &Machine{} }

// Connected records that a connection was made.
func (m *Machine) Connected(now time.Duration) {}

// ConnectFailed records that no connection could be made.
func (m *Machine) ConnectFailed(now time.Duration) {}

// Succeeded records a first token (or a complete answer), ttft after the pick.
func (m *Machine) Succeeded(now, ttft time.Duration) {}

// Failed records a failure of a request that had been sent.
func (m *Machine) Failed(now time.Duration, k Kind) {}

// ClientError records an answer that is the client's fault (4xx except 408 and 429).
func (m *Machine) ClientError(now time.Duration) {}

// Busy records a 429 or 503; retryAfter 0 means that none was given.
func (m *Machine) Busy(now, retryAfter time.Duration) {}

// Progress records a token or a completion.
func (m *Machine) Progress(now time.Duration) {}

// Booked records a pick of the endpoint; expectedPrefill is what its prefill should take.
func (m *Machine) Booked(now, expectedPrefill time.Duration) {}

// Released records the end of a booked request.
func (m *Machine) Released(now time.Duration) {}

// Report records that a metrics page was read (ok) or not.
func (m *Machine) Report(now time.Duration, ok bool) {}

// Health records the answer of /health; failed: no answer at all.
func (m *Machine) Health(now time.Duration, code int, failed bool) {}

// Asleep records whether the engine says that it sleeps.
func (m *Machine) Asleep(now time.Duration, asleep bool) {}

// Draining records that the endpoint is being taken away (discovery says so).
func (m *Machine) Draining(now time.Duration) {}

// Restarted records that another process answers at the address.
func (m *Machine) Restarted(now time.Duration) {}

// Pardon lets an ejected endpoint be tried at once: call it on every endpoint of the pool when a request succeeded that was
// routed while all endpoints were ejected, for then the cause was common.
func (m *Machine) Pardon(now time.Duration) {}

// State returns the state.
func (m *Machine) State(now time.Duration) State { return m.state }

// Admission returns how far the endpoint may be used.
func (m *Machine) Admission(now time.Duration) Admission { return Normal }

// Trying marks the trial as taken: until it ends the endpoint gets no other.
func (m *Machine) Trying(now time.Duration) {}

// Wedged reports that requests are in flight and nothing has moved for longer than their prefill explains.
func (m *Machine) Wedged(now time.Duration) bool { return false }

// Gone reports that silent streams of the endpoint will never move again and are to be cut.
func (m *Machine) Gone(now time.Duration) bool { return false }

// ProbeAt returns when /health should be asked next; negative: no need.
func (m *Machine) ProbeAt(now time.Duration) time.Duration { return -1 }

// NextEvent returns when State, Admission, Wedged, Gone or ProbeAt may change by the passing of time alone; negative: never.
func (m *Machine) NextEvent(now time.Duration) time.Duration { return -1 }

// Preference returns seconds to add to the cost of the endpoint: it asked for a pause.
func (m *Machine) Preference(now time.Duration) float64 { return 0 }
