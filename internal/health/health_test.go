package health

import (
	"testing"
	"time"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// script drives a machine along a time line.
type script struct {
	*testing.T
	m   *Machine
	now time.Duration
}

func begin(t *testing.T) *script {
	t.Helper()
	return &script{T: t, m: New(0)}
}

// ready is an endpoint that serves.
func ready(t *testing.T) *script {
	t.Helper()
	s := begin(t)
	s.m.Report(s.now, true)
	for range 20 {
		s.serve(10 * ms)
	}
	s.want(Ready, Normal)
	return s
}

func (s *script) pass(d time.Duration) *script { s.now += d; return s }

// pick books a request as the pool does and returns whether it was a trial.
func (s *script) pick(prefill time.Duration) bool {
	trial := s.m.Admission(s.now) == Trial
	if trial {
		s.m.Trying(s.now)
	}
	s.m.Booked(s.now, prefill)
	return trial
}

func (s *script) serve(d time.Duration) *script {
	s.pick(d)
	s.pass(d)
	s.m.Succeeded(s.now, d)
	s.m.Progress(s.now)
	s.m.Released(s.now)
	return s
}

func (s *script) fail(k Kind) *script {
	s.pick(0)
	s.m.Failed(s.now, k)
	s.m.Released(s.now)
	return s
}

func (s *script) want(st State, a Admission) *script {
	s.Helper()
	if got := s.m.State(s.now); got != st {
		s.Errorf("at %v: state %v, want %v", s.now, got, st)
	}
	if got := s.m.Admission(s.now); got != a {
		s.Errorf("at %v: admission %v, want %v", s.now, got, a)
	}
	return s
}

func TestNewEndpointServesTheNextRequest(t *testing.T) {
	s := begin(t).want(Unknown, Trial)
	s.pick(50 * ms)
	s.want(Unknown, LastResort) // one at a time until it is heard of
	s.m.Succeeded(s.now, 0)
	s.m.Released(s.now)
	s.want(Ready, Normal)

	s = begin(t)
	s.m.Connected(s.now)
	s.want(Warming, Normal)
	s.m.Report(s.now, true)
	s.want(Ready, Normal)

	s = begin(t)
	s.m.Health(s.now, 200, false)
	s.want(Ready, Normal)
}

// A refused connection takes the endpoint out at once. Time alone does not bring it back: a user would pay for the
// dial. What answers at the address does, within 3 s of its return.
func TestRefusedConnection(t *testing.T) {
	s := ready(t)
	s.pick(0)
	s.m.ConnectFailed(s.now)
	s.m.Released(s.now)
	s.want(Ejected, LastResort)
	dials := 1
	for down := s.now; s.now < down+7*sec; s.pass(50 * ms) {
		if at := s.m.ProbeAt(s.now); at >= 0 && at <= s.now {
			dials++
			s.m.Health(s.now, 0, true)
		}
		if s.m.Admission(s.now) != LastResort {
			t.Fatalf("at %v: a dead address is offered", s.now)
		}
	}
	if dials > 5 {
		t.Errorf("%d dials in 7 s, want at most 5", dials)
	}
	back := s.now
	for s.m.Admission(s.now) == LastResort {
		if at := s.m.ProbeAt(s.now); at >= 0 && at <= s.now {
			s.m.Health(s.now, 200, false)
		}
		s.pass(50 * ms)
		if s.now > back+10*sec {
			t.Fatal("never offered again")
		}
	}
	if took := s.now - back; took > 3*sec {
		t.Errorf("offered again after %v, want 3 s", took)
	}
	s.want(Ready, Normal) // nothing had been sent to it, so there is nothing to prove
}

func TestMetricsPageBringsARefusedEndpointBack(t *testing.T) {
	s := ready(t)
	s.m.ConnectFailed(s.now)
	s.m.Report(s.now, false)
	s.want(Ejected, LastResort).pass(300*ms).m.Report(s.now, true)
	s.want(Ready, Normal)
}

// What speaks against an endpoint in general, not against one request: a gateway that counts failed requests as "not ready"
// gets no requests, and nothing would ever end it.
func TestUsable(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*script)
		want bool
	}{
		{"never heard of", func(s *script) { *s.m = *New(s.now) }, false},
		{"ready", func(*script) {}, true},
		{"a request failed", func(s *script) { s.fail(KindStatus) }, true},
		{"refused", func(s *script) { s.m.ConnectFailed(s.now) }, false},
		{"refused, then well", func(s *script) { s.m.ConnectFailed(s.now); s.m.Health(s.now, 200, false) }, true},
		{"says that it is ill", func(s *script) { s.m.Health(s.now, 503, false) }, false},
		{"asleep", func(s *script) { s.m.Asleep(s.now, true) }, false},
		{"taken away", func(s *script) { s.m.Draining(s.now) }, false},
		{"draining", func(s *script) { s.fail(KindDrain) }, false},
	} {
		s := ready(t)
		c.do(s)
		if got := s.m.Usable(s.now); got != c.want {
			t.Errorf("%s: usable %v, want %v", c.name, got, c.want)
		}
	}
}

// With nothing that probes, an address is tried now and then all the same.
func TestRefusedWithoutProbes(t *testing.T) {
	s := ready(t)
	s.m.ConnectFailed(s.now)
	s.pass(14*sec).want(Ejected, LastResort).pass(2*sec).want(Ejected, Trial)
}

// An endpoint that fails every request after dispatch costs one request at first, and then one per doubling pause.
func TestFailingEndpointCostsLittle(t *testing.T) {
	for _, k := range []Kind{KindStatus, KindReset, KindCut} {
		s := ready(t)
		s.fail(k).want(Ejected, LastResort)
		failed, start := 1, s.now
		for s.now < start+5*60*sec {
			s.pass(20 * ms)
			if s.m.Admission(s.now) <= Trial {
				s.fail(k)
				failed++
			}
			if s.now-start < 4*sec && failed > 1 {
				t.Fatalf("kind %d: %d failed within 4 s", k, failed)
			}
		}
		if failed > 9 {
			t.Errorf("kind %d: %d requests failed in 5 minutes, want at most 9", k, failed)
		}
	}
}

func TestOneTrialAtATime(t *testing.T) {
	s := ready(t).fail(KindStatus).pass(ejectFirst).want(Ejected, Trial)
	s.pick(0)
	s.want(Ejected, LastResort).pass(trialMost-sec).want(Ejected, LastResort)
	s.m.Succeeded(s.now, 0)
	s.want(Ready, Normal)
}

func TestTrialThatProvesNothingIsFollowedByAnother(t *testing.T) {
	ends := map[string]func(s *script){
		"client error": func(s *script) { s.m.ClientError(s.now) },
		"cancelled":    func(*script) {},
	}
	for name, end := range ends {
		s := ready(t)
		s.pick(0) // an older request is in flight all the time
		s.fail(KindStatus).pass(ejectFirst)
		s.pick(0)
		end(s)
		s.m.Released(s.now) // the older one, as far as anybody can tell
		s.m.Released(s.now)
		if a := s.m.Admission(s.now); a != Trial {
			t.Errorf("%s: admission %v, want another trial", name, a)
		}
	}
}

// A failed trial doubles the pause; a served probation halves it to the start.
func TestBackOff(t *testing.T) {
	s := ready(t)
	for _, pause := range []time.Duration{5 * sec, 10 * sec, 20 * sec, 40 * sec, 60 * sec, 60 * sec} {
		s.fail(KindReset).pass(pause-ms).want(Ejected, LastResort).pass(ms).want(Ejected, Trial)
	}
	for range 10 {
		s.serve(ms)
	}
	s.want(Ready, Normal).fail(KindReset).pass(ejectFirst).want(Ejected, Trial)
}

// A request that makes any server fail does not take a working one away for long: the others on it get their tokens.
func TestPoisonRequest(t *testing.T) {
	s := ready(t)
	s.pick(0)
	s.fail(KindStatus).want(Ejected, LastResort)
	s.pass(30*ms).m.Succeeded(s.now, 0)
	s.want(Ejected, Trial).serve(ms).want(Ready, Normal)
}

// Failures of one incident count once.
func TestBurstOfFailuresIsOneIncident(t *testing.T) {
	s := ready(t)
	for range 30 {
		s.pick(0)
	}
	for range 30 {
		s.m.Failed(s.now, KindReset)
		s.m.Released(s.now)
	}
	s.pass(ejectFirst).want(Ejected, Trial)
}

func TestClientErrorsNeverCount(t *testing.T) {
	s := ready(t)
	for range 1000 {
		s.pick(0)
		s.m.ClientError(s.now)
		s.m.Released(s.now)
	}
	s.want(Ready, Normal)
}

func TestRefusalForLoadIsNoFailure(t *testing.T) {
	s := ready(t)
	s.pick(0)
	s.m.Failed(s.now, KindBusy)
	s.want(Ready, Normal)
}

// A clock may start at zero: the first probe is due at once.
func TestFirstProbe(t *testing.T) {
	if at := New(0).ProbeAt(0); at != 0 {
		t.Errorf("first probe at %v, want at once", at)
	}
}

func TestPardon(t *testing.T) {
	s := ready(t)
	for range 5 {
		s.fail(KindStatus)
	}
	s.want(Ejected, LastResort).m.Pardon(s.now)
	s.want(Ejected, Trial).serve(ms).want(Ready, Normal)

	s = ready(t)
	s.m.ConnectFailed(s.now)
	s.m.Pardon(s.now)
	s.want(Ejected, LastResort)

	s = ready(t)
	s.fail(KindDrain).m.Pardon(s.now)
	s.want(Draining, LastResort)
}

func TestBusy(t *testing.T) {
	s := ready(t)
	s.pass(10*sec).m.Busy(s.now, 7*sec)
	s.want(Ready, Avoid)
	if p := s.m.Preference(s.now + 2*sec); p != 5 {
		t.Errorf("preference %v, want the 5 s that are left", p)
	}
	if next := s.m.NextEvent(s.now); next != s.now+7*sec {
		t.Errorf("next event at %v, want %v", next, s.now+7*sec)
	}
	s.pass(7*sec).want(Ready, Normal)
	if p := s.m.Preference(s.now); p != 0 {
		t.Errorf("preference %v after the pause, want 0", p)
	}
	s.m.Busy(s.now, time.Hour)
	s.pass(busyMost).want(Ready, Normal) // nobody is believed for an hour
}

// Without Retry-After the pause is short while the engine answers others, and grows while it answers nobody.
func TestBusyWithoutRetryAfter(t *testing.T) {
	s := ready(t)
	s.serve(ms).m.Busy(s.now, 0)
	s.want(Ready, Avoid).pass(busyAlive).want(Ready, Normal)

	s = ready(t).pass(10 * sec)
	for _, pause := range []time.Duration{2 * sec, 4 * sec, 8 * sec, 16 * sec} {
		s.m.Busy(s.now, 0)
		s.pass(pause-ms).want(Ready, Avoid).pass(ms).want(Ready, Normal)
	}
	s.serve(ms).pass(2*sec).m.Busy(s.now, 0)
	s.pass(2*sec).want(Ready, Normal)
}

// A draining engine answers /health with 200 and finishes its streams: neither is a reason to send it more.
func TestDrainAnswer(t *testing.T) {
	s := ready(t)
	s.pick(0)
	s.fail(KindDrain).want(Draining, LastResort)
	s.m.Succeeded(s.now, 0)
	s.m.Health(s.now, 200, false)
	s.m.Report(s.now, true)
	s.want(Draining, LastResort)
	s.pass(drainPause).want(Draining, Trial)
	s.m.Restarted(s.now)
	s.want(Warming, Normal)
}

func TestLeavingAndSleeping(t *testing.T) {
	s := ready(t)
	s.m.Draining(s.now)
	s.serve(ms).want(Draining, LastResort)

	s = ready(t)
	s.m.Asleep(s.now, true)
	s.want(Asleep, LastResort)
	if s.m.ProbeAt(s.now) >= 0 {
		t.Error("a sleeping endpoint is probed")
	}
	s.m.Asleep(s.now, false)
	s.want(Ready, Normal)
}

// An endpoint that streams is not dead, however slow its metrics page.
func TestSlowMetricsOfAStreamingEndpoint(t *testing.T) {
	s := ready(t)
	s.pick(0)
	for range 100 {
		s.pass(sec)
		s.m.Report(s.now, false)
		s.m.Progress(s.now)
		s.want(Ready, Normal)
	}
}
