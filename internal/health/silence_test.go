package health

import (
	"testing"
	"time"
)

func TestWedged(t *testing.T) {
	s := ready(t)
	s.pick(2 * sec)
	start := s.now
	for s.now < start+10*sec {
		s.pass(500 * ms).pick(2 * sec) // the queue grows, which must not stretch the bound
		s.want(Ready, Normal)
	}
	s.pass(7*sec).want(Ejected, LastResort)
	if !s.m.Wedged(s.now) {
		t.Error("not wedged")
	}
	s.m.Progress(s.now)
	s.want(Ready, Normal)
}

// A long prefill that was booked is no wedge.
func TestWedgeBoundStretchesWithPrefill(t *testing.T) {
	s := ready(t)
	s.pick(20 * sec)
	for range 60 {
		s.pass(sec).pick(sec)
	}
	s.want(Ready, Normal).pass(11*sec).want(Ejected, LastResort)
}

// One long answer that comes in one piece is silent until its end, and no wedge.
func TestLoneSilentAnswerIsNoWedge(t *testing.T) {
	s := ready(t)
	s.pick(sec)
	s.pass(10*time.Minute).want(Ready, Normal)
}

// A wedged endpoint whose clients all left gets one trial, not its old share.
func TestWedgeOutlastsItsRequests(t *testing.T) {
	s := ready(t)
	for range 4 {
		s.pick(sec)
	}
	s.pass(30*sec).want(Ejected, LastResort)
	for range 4 {
		s.m.Released(s.now)
	}
	s.want(Ejected, Trial).pick(0)
	s.want(Ejected, LastResort).m.Succeeded(s.now, 0)
	s.want(Ready, Normal)
}

// probe answers what ProbeAt asks for until the streams are cut or the time is up.
func (s *script) probe(d time.Duration, code int, failed bool, each func()) (cutAfter time.Duration) {
	start := s.now
	for s.now < start+d {
		if at := s.m.ProbeAt(s.now); at >= 0 && at <= s.now {
			s.m.Health(s.now, code, failed)
		}
		if s.m.Gone(s.now) {
			return s.now - start
		}
		each()
		s.pass(50 * ms)
	}
	return -1
}

// A vLLM that got SIGTERM: /health 503 or a closed port, and its streams say nothing any more.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   int
		failed bool
	}{{"503", 503, false}, {"closed port", 0, true}} {
		s := ready(t)
		s.pick(0)
		s.m.Succeeded(s.now, 0)
		cut := s.probe(time.Minute, c.code, c.failed, func() {})
		if cut < 0 || cut > 6*sec {
			t.Errorf("%s: silent streams cut after %v, want within 6 s", c.name, cut)
		}
		s.want(Gone, LastResort)
		s.m.Health(s.now, 200, false)
		s.want(Ready, Normal)
	}
}

func TestNotGone(t *testing.T) {
	s := ready(t)
	s.pick(0)
	if cut := s.probe(time.Minute, 503, false, func() { s.m.Progress(s.now) }); cut >= 0 {
		t.Errorf("moving streams cut after %v", cut)
	}
	s = ready(t)
	s.pick(50 * sec)
	if cut := s.probe(time.Minute, 200, false, func() {}); cut >= 0 {
		t.Errorf("a long prefill cut after %v although /health is well", cut)
	}
	s = ready(t)
	s.pick(0)
	s.m.Health(s.now, 0, true)
	s.m.Health(s.now, 503, false)
	s.m.Health(s.now, 0, true)
	s.want(s.m.State(s.now), LastResort)
	if s.m.Gone(s.now + sec) {
		t.Error("gone after a second of silence")
	}
}

// The first 503 of /health takes the endpoint out of the picks, one missing answer does not.
func TestHealthAnswersAndPicks(t *testing.T) {
	s := ready(t)
	s.m.Health(s.now, 503, false)
	s.want(Gone, LastResort)
	s.m.Health(s.now, 404, false)
	s.want(Ready, Normal)
	s.m.Health(s.now, 0, true)
	s.want(Ready, Normal)
}

func TestRestarted(t *testing.T) {
	s := ready(t)
	s.pick(0)
	for range 4 {
		s.fail(KindReset)
	}
	s.m.Restarted(s.now)
	s.want(Warming, Normal)
	s.m.Released(s.now)
	s.m.Released(s.now) // one too many changes nothing
	s.want(Warming, Normal)
}

// A process that stands still keeps its port open: its kernel takes connections and nothing answers. Its silent streams are cut
// after half a minute, not after the limit of the requests; whatever moves meanwhile proves the contrary.
func TestProcessThatStandsStill(t *testing.T) {
	s := ready(t)
	s.pick(0)
	s.pass(2 * sec).m.Mute(s.now)
	for range 9 {
		s.pass(3 * sec).m.Connected(s.now)
		s.m.Mute(s.now)
		s.m.Report(s.now, false)
	}
	s.want(Ready, Normal)
	if s.m.Gone(s.now) {
		t.Error("gone too early: a busy front end is silent for some seconds")
	}
	s.pass(4 * sec)
	if !s.m.Gone(s.now) || s.m.Usable(s.now) {
		t.Error("a process that stood still for half a minute is not gone")
	}
	s.want(Gone, LastResort)
	s.m.Report(s.now, true)
	s.want(Ready, Normal)

	s = ready(t)
	s.pick(0)
	for range 20 {
		s.pass(3 * sec).m.Mute(s.now)
		s.m.Progress(s.now)
	}
	if s.m.Gone(s.now) {
		t.Error("gone although its streams move")
	}
}

// Clients that leave after 3 s, one after the other, do not hide that the engine stands still. Time in which nobody asks does
// not count.
func TestImpatientClientsDoNotHideAWedge(t *testing.T) {
	s := ready(t)
	asked := 0
	for s.m.State(s.now) == Ready && asked < 20 {
		s.pick(100 * ms)
		s.pass(3 * sec).m.Released(s.now)
		s.pass(20 * sec)
		asked++
	}
	if asked < 3 || asked > 5 {
		t.Errorf("found out after %d requests of 3 s, want 3 to 5: the bound is 10 s of silence", asked)
	}
	s.want(Ejected, Trial)
	if p := s.m.Preference(s.now); p != 0 {
		t.Errorf("the trial costs %v s more: it would never be made", p)
	}
	s.serve(10 * ms)
	s.want(Ready, Normal)
}

// Clients that leave before a long prefill is done, that get an error, that cannot connect, or that leave between others'
// answers, say nothing of a wedge.
func TestNoWedgeWhenClientsLeave(t *testing.T) {
	s := ready(t)
	for range 3 {
		s.pick(100 * ms)
		s.pass(sec).m.Released(s.now)
	}
	s.pick(20 * sec)
	s.pass(30*sec).want(Ready, Normal).m.Released(s.now)
	s.serve(sec)
	for range 20 {
		s.pick(0)
		s.pass(2 * sec).m.ClientError(s.now)
		s.m.Released(s.now)
	}
	s.want(Ready, Normal)
	for range 20 {
		s.pick(0)
		s.pass(3 * sec).m.Released(s.now)
		s.serve(sec)
	}
	s.want(Ready, Normal)
	for range 20 {
		s.pick(0)
		s.pass(1500 * ms).m.ConnectFailed(s.now)
		s.m.Released(s.now)
	}
	s.m.Report(s.now, true)
	s.want(Ready, Normal)
}
