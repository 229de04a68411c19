package health

import "time"

// A process that is new answers its first requests slowly, whatever its /health says: kernels are compiled at the first shape that
// needs them, for 10 s and more, and everything that was sent meanwhile waits. So it gets a few requests, and more with each that
// it answers. At a healthy engine that is over within a second.
const (
	startFirst  = 4                // requests in flight that a new process gets
	startEach   = 4                // more with each answer
	startProven = 16               // answers after which it gets its full share
	startMost   = 10 * time.Second // the same since its first request, if anything has moved: answers in one piece may take minutes
)

// start is what a new process has shown.
type start struct {
	begun    bool
	at       time.Duration // its first request
	answered int           // first tokens and answers, up to startProven
}

// another records that the process at the address is probably another one than before.
func (m *Machine) another() {
	m.lives++
	m.start = start{}
}

// Lives counts the processes that came after the first one at the address, as far as can be told: it goes up by each that was Restarted,
// that answers where the port was closed, or whose /health is well after it was not.
func (m *Machine) Lives() int { return m.lives }

// Warm records whether the endpoint is being sent synthetic requests, during which users' go elsewhere.
func (m *Machine) Warm(warming bool) { m.warming = warming }

// startEnds is when a new process gets its full share however few requests it answered.
func (m *Machine) startEnds() time.Duration {
	if !m.start.begun || m.still || m.start.answered >= startProven {
		return never
	}
	return m.start.at + startMost
}

// startFull reports that a new process has as many requests as it is trusted with.
func (m *Machine) startFull(now time.Duration) bool {
	s := &m.start
	if !s.begun || s.answered >= startProven || m.inFlight < startFirst+startEach*s.answered {
		return false
	}
	end := m.startEnds()
	return end < 0 || now < end
}
