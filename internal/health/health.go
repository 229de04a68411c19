package health

import "time"

// State is what an endpoint is known to be.
type State uint8

// States.
const (
	Unknown  State = iota // nothing was heard of it yet
	Warming               // it gets synthetic requests first; or its port is open, or another process took its place, and it has not shown yet that it works
	Ready                 // in use: a request succeeded, or it answered /health or /metrics well
	Ejected               // it failed or is wedged; back after a trial
	Draining              // it refuses new work and finishes what it has
	Asleep                // its engine sleeps: requests would hang
	Gone                  // it went away: /health 503 or a closed port
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
	Avoid                       // it asked for a pause, or is new and has enough to do: only when no other is left
	LastResort                  // only when everything looks dead
)

// Kind says how a request failed.
type Kind uint8

// Kinds of failure.
const (
	KindConnect  Kind = iota // no connection: nothing was sent
	KindReset                // the connection broke before an answer
	KindCut                  // the answer broke off
	KindStatus               // 5xx
	KindTimeout              // a limit ran out
	KindDrain                // the answer of a draining engine
	KindImproper             // what came was no answer
	KindDenied               // 401 or 403 to a key that is the pool\'s
	KindBusy                 // refused for load: no failure; Busy tells for how long
	KindOurs                 // no connection, for want of something here: nothing is held against the endpoint
)

// String says it in words for a log.
func (k Kind) String() string {
	switch k {
	case KindConnect:
		return "no connection"
	case KindReset:
		return "the connection broke before an answer"
	case KindCut:
		return "an answer broke off"
	case KindStatus:
		return "a request was answered with an error of the server"
	case KindTimeout:
		return "a request ran into a limit"
	case KindDrain:
		return "the engine is draining"
	case KindImproper:
		return "a request was answered with what is no answer"
	case KindDenied:
		return "the API key of the pool was refused"
	case KindBusy:
		return "refused for load"
	case KindOurs:
		return "the gateway had no resources for a connection"
	}
	return "unknown"
}

// Times. The reasons are with the rules that use them.
const (
	ejectFirst = 5 * time.Second  // pause after the first failure of a request; doubles
	ejectMost  = 60 * time.Second //
	drainPause = 10 * time.Second // pause after a draining engine's answer; doubles
	trialMost  = 30 * time.Second // beyond its expected prefill: after that an open trial blocks no other
	blindTrial = 15 * time.Second // a closed address is tried without evidence when nothing probes it

	busyFirst = 2 * time.Second // pause after 429 or 503 without Retry-After; doubles while nothing succeeds
	busyAlive = time.Second     // the same when the engine answers others: its queue is full, not its front end ill
	busyMost  = time.Minute

	wedgeAfter   = 10 * time.Second // silence beyond the booked prefill
	wedgeStretch = 3                // times the prefill that was expected
	wedgeGrowth  = 2                // requests added meanwhile

	probeFirst  = time.Second
	probeEvery  = 2500 * time.Millisecond // below 3 s: a server that comes back is used within that
	silence     = 1500 * time.Millisecond // without progress, while requests are open, until /health is asked
	goneSilence = 3 * time.Second
	goneRefused = 2                // answers of 503 in a row
	goneFailed  = 3                // probes without an answer in a row: one may be a front end that is short of CPU
	goneMute    = 30 * time.Second // nothing moves and /health takes connections without ever answering: the process stands still

	probation = 8 // successes after which an endpoint's failures are forgotten
)

// Machine is the state of one endpoint. Use New.
type Machine struct {
	heard, proven bool // something answered at the address; it showed that it works
	lives         int  // see Lives
	start         start
	warming       bool // it gets synthetic requests first
	asleep        bool
	leaving       bool // discovery takes it away

	ejected   bool
	refused   bool // ejected for want of a connection: evidence ends it, not time
	drained   bool // ejected by a draining engine's answer
	until     time.Duration
	streak    int // ejections without a probation passed
	successes int // since the last ejection

	trial      bool
	trialUntil time.Duration
	older      int // requests in flight that are not the trial

	busyUntil  time.Duration
	busyStreak int
	lastOK     time.Duration // last success
	hasOK      bool

	inFlight int
	moved    time.Duration // last token or completion, or the first booking after idleness
	drainBy  time.Duration // when the latest booking's prefill is done at the latest
	dueBy    time.Duration // the same for what was booked at the last move
	grown    int           // requests booked since the last move
	still    bool          // since a request was booked on an idle endpoint nothing has moved, answered, or been refused
	idleAt   time.Duration // when the last request in flight was released
	stuck    bool

	badSince  time.Duration // first of the bad answers of /health in a row
	badCodes  int           // 5xx
	badProbes int           // none at all
	mute      time.Duration // first of the probes in a row that were taken and never answered
	muted     bool
	probed    time.Duration // last probe, or last failed connection
	probes    int           // since the endpoint was last known to be well
	noReport  time.Duration // first of the failed reports in a row
	blind     bool          // reports fail
}

// New returns a machine in state Unknown.
func New(now time.Duration) *Machine {
	return &Machine{moved: now, probed: now - probeEvery}
}

// Connected records that a connection was made: the port is open, which says nothing of the engine.
func (m *Machine) Connected(now time.Duration) { m.reachable(now) }

// reachable ends what only a closed port explains. What answers where the port was closed is another process.
func (m *Machine) reachable(now time.Duration) {
	m.heard = true
	if m.refused || m.badProbes >= goneFailed {
		m.another()
	}
	m.badProbes = 0
	if m.refused {
		m.refused = false
		m.until = now
	}
}

// well records an answer that shows that the endpoint works. One that was only refused a connection is back: nothing had been
// sent to it, so nothing is held against it.
func (m *Machine) well(now time.Duration) {
	m.proven = true
	if m.refused {
		m.ejected, m.trial, m.probes = false, false, 0
	}
	m.reachable(now)
}

// ConnectFailed records that no connection could be made. The request lost nothing, so one is enough.
func (m *Machine) ConnectFailed(now time.Duration) {
	m.still = false
	if m.badCodes+m.badProbes == 0 {
		m.badSince = now
	}
	if m.badProbes == 0 || now-m.probed > probeFirst/2 {
		m.badProbes++ // as good as a probe; those of one burst count once
	}
	m.eject(now, 0)
	m.refused = true
	m.until = now + blindTrial
	m.probed = now
}

// Succeeded records a first token (or a complete answer), ttft after the pick.
func (m *Machine) Succeeded(now, _ time.Duration) {
	m.reachable(now)
	m.move(now)
	m.proven, m.hasOK, m.lastOK = true, true, now
	m.badCodes = 0
	m.start.answered = min(m.start.answered+1, startProven)
	if now >= m.busyUntil {
		m.busyStreak = 0
	}
	switch {
	case m.ejected && m.trial:
		m.ejected, m.refused, m.drained = false, false, false
		m.successes, m.probes = 1, 0
	case m.ejected && m.drained:
		// A drain finishes what it has.
	case m.ejected && m.streak <= 1:
		m.until = min(m.until, now) // it works for others: the fault was the request's
	case m.ejected:
	default:
		if m.successes++; m.successes >= probation {
			m.streak = 0
		}
	}
	m.trial = false
}

// Failed records a failure of a request that had been sent. A request that ran into a limit is held against the
// endpoint only when nothing else of it moves: its limit may have been short, or its prompt long.
func (m *Machine) Failed(now time.Duration, k Kind) {
	m.still = m.still && k == KindTimeout
	switch k {
	case KindConnect:
		m.ConnectFailed(now)
	case KindDrain:
		m.eject(now, drainPause)
		m.drained = true
	case KindBusy:
		m.ClientError(now)
	case KindOurs:
		m.trial = false
	case KindTimeout:
		if now-m.moved > silence || m.trial {
			m.eject(now, ejectFirst)
		}
	default:
		m.eject(now, ejectFirst)
	}
}

// eject takes the endpoint out. What fails while it is out already belongs to the same incident, unless it was the
// trial.
func (m *Machine) eject(now, pause time.Duration) {
	if m.ejected && !m.trial {
		m.until = max(m.until, now) // evidence that it works is older than this
		return
	}
	m.ejected, m.trial, m.refused, m.drained = true, false, false, false
	m.streak++
	m.successes, m.probes = 0, 0
	m.until = now + min(pause<<min(m.streak-1, 8), max(ejectMost, pause))
}

// ClientError records an answer that is the client's fault (4xx except 408 and 429). A trial that ends so proved
// nothing: another may follow.
func (m *Machine) ClientError(now time.Duration) {
	m.reachable(now)
	m.trial, m.still = false, false
}

// Busy records a 429 or 503; retryAfter 0 means that none was given.
func (m *Machine) Busy(now, retryAfter time.Duration) {
	m.reachable(now)
	m.trial, m.still = false, false
	if retryAfter <= 0 {
		retryAfter = min(busyFirst<<min(m.busyStreak, 5), busyMost)
		if m.hasOK && now-m.lastOK < busyAlive {
			retryAfter = busyAlive
		}
		m.busyStreak++
	}
	m.busyUntil = max(m.busyUntil, now+min(retryAfter, busyMost))
}

// Progress records a token, a completion, or a metrics page whose token counters went up.
func (m *Machine) Progress(now time.Duration) { m.move(now) }

func (m *Machine) move(now time.Duration) {
	m.moved = max(m.moved, now)
	m.dueBy = m.drainBy
	m.grown, m.stuck, m.still = 0, false, false
}

// Booked records a pick of the endpoint; expectedPrefill is what it should take until the first token.
func (m *Machine) Booked(now, expectedPrefill time.Duration) {
	m.Wedged(now) // latch before the new request changes the picture
	by := now + wedgeStretch*min(max(0, expectedPrefill), time.Hour)
	m.drainBy = max(m.drainBy, by)
	switch {
	case m.inFlight > 0:
		m.grown++
	case m.still:
		// Those before it left, and nothing had moved: their silence goes on, less the time in which nobody asked. Else
		// clients that do not wait long would hide for ever that an engine stands still. The prefill that explains it is
		// this request's.
		m.moved += now - m.idleAt
		m.dueBy = by - (now - m.moved)
		m.grown++
	default:
		m.moved, m.dueBy, m.grown, m.still = max(m.moved, now), by, 0, true
	}
	m.inFlight++
	if !m.start.begun {
		m.start.begun, m.start.at = true, now
	}
	if m.trial {
		m.trialUntil = max(m.trialUntil, by+trialMost)
	}
}

// Released records the end of a booked request, whatever it was.
func (m *Machine) Released(now time.Duration) {
	m.Wedged(now)
	m.inFlight = max(0, m.inFlight-1)
	switch {
	case !m.trial:
	case m.older > 0:
		m.older--
	default:
		m.trial = false // cancelled: it proved nothing
	}
	if m.inFlight == 0 {
		m.drainBy, m.idleAt = now, now
	}
}

// Report records that a metrics page was read (ok) or not. A page that fails is no sign of death: it is slow when the
// machine is busy.
func (m *Machine) Report(now time.Duration, ok bool) {
	if ok {
		m.muted, m.blind = false, false
		m.well(now)
		return
	}
	if !m.blind {
		m.blind, m.noReport = true, now
	}
}

// Health records the answer of /health; failed: no answer at all. Any answer below 500 means well: not every server
// has the page.
func (m *Machine) Health(now time.Duration, code int, failed bool) {
	m.probed = now
	m.probes++
	m.muted = false
	if !failed && code < 500 {
		if m.badCodes > 0 {
			m.another()
			if m.ejected {
				m.until = min(m.until, now) // of the one before
				m.drained = false
			}
		}
		m.badCodes = 0
		m.well(now)
		if !m.ejected {
			m.probes = 0
		}
		return
	}
	if m.badCodes+m.badProbes == 0 {
		m.badSince = now
	}
	if failed {
		m.badProbes++
		if m.refused {
			m.until = now + blindTrial
		}
		return
	}
	m.reachable(now)
	m.badCodes++
}

// Mute records that /health took the connection and did not answer in time. A busy front end does so too, therefore it counts
// only when it goes on while nothing else moves.
func (m *Machine) Mute(now time.Duration) {
	m.probed = now
	m.probes++
	if !m.muted {
		m.muted, m.mute = true, now
	}
}

// Asleep records whether the engine says that it sleeps.
func (m *Machine) Asleep(now time.Duration, asleep bool) {
	if m.asleep && !asleep {
		m.move(now)
	}
	m.asleep = asleep
}

// Draining records that the endpoint is being taken away (discovery says so). Only Restarted ends it.
func (m *Machine) Draining(time.Duration) { m.leaving = true }

// Restarted records that another process answers at the address: what the old one did counts no more. Requests in
// flight stay booked until they are released.
func (m *Machine) Restarted(now time.Duration) {
	*m = Machine{heard: true, lives: m.lives, inFlight: m.inFlight, moved: now, dueBy: now, drainBy: now, probed: now}
	m.another()
}

// Pardon lets an ejected endpoint be tried at once: call it on every endpoint of the pool when a request succeeded that
// was routed as a last resort, for then the cause was common and is over. It does not open a closed port, nor end a
// drain or a sleep.
func (m *Machine) Pardon(now time.Duration) {
	if !m.ejected || m.refused || m.drained {
		return
	}
	m.until = min(m.until, now)
	m.streak = min(m.streak, 1)
}

// Trying marks the trial as taken: until it ends the endpoint gets no other. Call it before Booked.
func (m *Machine) Trying(now time.Duration) {
	m.trial, m.older = true, m.inFlight
	m.trialUntil = now + trialMost
}
