package health

import "time"

// never is what the functions that return a time return when there is none.
const never time.Duration = -1

// State returns the state.
func (m *Machine) State(now time.Duration) State {
	switch {
	case m.asleep:
		return Asleep
	case m.Gone(now) || m.unwell(now) && m.proven:
		return Gone
	case m.leaving || m.ejected && m.drained:
		return Draining
	case m.ejected || m.unwell(now) || m.Wedged(now):
		return Ejected
	case !m.heard:
		return Unknown
	case !m.proven || m.warming:
		return Warming
	}
	return Ready
}

// Admission returns how far the endpoint may be used.
func (m *Machine) Admission(now time.Duration) Admission {
	switch {
	case m.asleep || m.leaving || m.unwell(now) || m.warming:
		return LastResort
	case m.Wedged(now) && m.inFlight > 0 || m.ejected && now < m.until:
		return LastResort
	case m.stuck || m.ejected || !m.heard:
		return m.onTrial(now)
	case now < m.busyUntil || m.startFull(now):
		return Avoid
	}
	return Normal
}

// onTrial is how far an endpoint may be used of which only a request can tell whether it works.
func (m *Machine) onTrial(now time.Duration) Admission {
	switch {
	case m.trial && now < m.trialUntil:
		return LastResort // one trial at a time
	case now < m.busyUntil:
		return Avoid
	}
	return Trial
}

// Usable reports whether the endpoint could be asked: it answers, and it does not say that it is ill, asleep or leaving. One
// that was ejected for the failures of requests is usable: only another request can show that they are over.
func (m *Machine) Usable(now time.Duration) bool {
	return m.heard && !m.asleep && !m.leaving && !m.refused && !m.drained && !m.unwell(now)
}

// unwell reports that /health says so: one 5xx, no connection in a row of probes while nothing moves, or no answer for long.
func (m *Machine) unwell(now time.Duration) bool {
	if at := m.muteAt(); at >= 0 && now >= at {
		return true
	}
	return m.badCodes > 0 || m.badProbes >= goneFailed && now-m.moved > silence
}

// Wedged reports that requests are in flight, more were added, and nothing has moved for longer than the prefill that was
// booked explains. It stays so until something moves; when all its requests have left, one trial may find that out.
//
// The prefill that counts is that of the requests booked at the last move: the first of them to be done is a move. What was
// added later must not stretch the bound, or a dead engine that is fed fast enough would never be found out.
func (m *Machine) Wedged(now time.Duration) bool {
	if at := m.wedgeAt(); at >= 0 && now > at {
		m.stuck = true
	}
	return m.stuck
}

// wedgeAt is when the endpoint counts as wedged if nothing moves.
func (m *Machine) wedgeAt() time.Duration {
	if m.inFlight == 0 || m.grown < wedgeGrowth {
		return never
	}
	return max(m.moved, m.dueBy) + wedgeAfter
}

// Gone reports that silent answers of the endpoint will never move again and are to be cut.
func (m *Machine) Gone(now time.Duration) bool {
	at := m.goneAt()
	return at >= 0 && now >= at
}

// goneAt is when silent answers are to be cut if nothing moves.
func (m *Machine) goneAt() time.Duration {
	if m.badCodes < goneRefused && m.badProbes < goneFailed {
		return m.muteAt()
	}
	return max(m.badSince, m.moved) + goneSilence
}

// muteAt is when an endpoint that takes connections and answers nothing counts as gone if nothing moves.
func (m *Machine) muteAt() time.Duration {
	if !m.muted {
		return never
	}
	return max(m.mute, m.moved) + goneMute
}

// ProbeAt returns when /health should be asked next; negative: no need. One probe at a time; its answer goes to Health.
func (m *Machine) ProbeAt(now time.Duration) time.Duration {
	gap := probeFirst
	if m.probes > 1 || m.refused && m.probes > 0 {
		gap = probeEvery
	}
	next := m.probed + gap
	switch {
	case m.badCodes+m.badProbes > 0 && m.inFlight > 0:
		return m.probed + probeFirst // its open answers depend on it
	case !m.heard || m.ejected || m.leaving || m.badCodes+m.badProbes > 0:
		return max(0, next)
	case m.asleep:
		return never
	case m.inFlight > 0:
		return max(m.moved+silence, m.probed+silence)
	case m.blind:
		return max(m.noReport+silence, next)
	}
	return never
}

// NextEvent returns when State, Admission, Wedged, Gone or ProbeAt may change by the passing of time alone; negative:
// never.
func (m *Machine) NextEvent(now time.Duration) time.Duration {
	next := never
	for _, at := range [...]time.Duration{
		m.busyUntil, m.ejectedUntil(), m.trialEnd(), m.after(m.wedgeAt()), m.goneAt(), m.ProbeAt(now), m.unwellAt(), m.startEnds(),
	} {
		if at > now && (next < 0 || at < next) {
			next = at
		}
	}
	return next
}

func (m *Machine) ejectedUntil() time.Duration {
	if m.ejected {
		return m.until
	}
	return never
}

func (m *Machine) trialEnd() time.Duration {
	if m.trial {
		return m.trialUntil
	}
	return never
}

func (m *Machine) unwellAt() time.Duration {
	if m.badProbes >= goneFailed {
		return m.moved + silence + 1
	}
	return never
}

func (m *Machine) after(at time.Duration) time.Duration {
	if at < 0 {
		return never
	}
	return at + 1
}

// Preference returns seconds to add to the cost of the endpoint: what is left of the pause that it asked for, and more
// where a request would hang rather than fail, so that among last resorts the others come first.
func (m *Machine) Preference(now time.Duration) float64 {
	p := 0.0
	if now < m.busyUntil {
		p = (m.busyUntil - now).Seconds()
	}
	hangs := m.asleep || m.stuck || m.leaving || m.unwell(now) || m.ejected && m.drained
	if hangs && m.Admission(now) == LastResort { // a trial that is due must not be priced out
		p += 60
	}
	return p
}
