package health

import "testing"

// answer is the end of one request in flight.
func (s *script) answer() *script {
	s.m.Succeeded(s.now, 0)
	s.m.Progress(s.now)
	s.m.Released(s.now)
	return s
}

func TestNewProcessGetsAFewAtFirst(t *testing.T) {
	s := begin(t)
	s.m.Report(s.now, true)
	for range 4 {
		s.want(Ready, Normal)
		s.pick(ms)
	}
	s.want(Ready, Avoid)
	s.pass(8*sec).want(Ready, Avoid)
	s.answer().want(Ready, Normal)
	for range 5 {
		s.pick(ms)
	}
	s.want(Ready, Avoid) // eight after one answer
	for range 5 {
		s.answer()
	}
	for range 11 {
		s.pick(ms)
		s.answer()
	}
	for range 100 {
		s.pick(ms)
	}
	s.want(Ready, Normal)
}

// Answers in one piece take as long as they take: when something has moved, the time decides.
func TestNewProcessWithLongAnswers(t *testing.T) {
	s := begin(t)
	s.m.Report(s.now, true)
	for range 4 {
		s.pick(ms)
	}
	s.m.Progress(s.now) // its page counts tokens
	s.pass(9*sec).want(Ready, Avoid)
	if at := s.m.NextEvent(s.now); at != 10*sec {
		t.Errorf("the next change by time is expected at %v", at)
	}
	s.pass(sec).want(Ready, Normal)
}

func TestWhatComesBackIsNew(t *testing.T) {
	s := ready(t)
	s.m.ConnectFailed(s.now)
	s.pass(5 * sec)
	s.m.Health(s.now, 200, false)
	for range 4 {
		s.want(Ready, Normal)
		s.pick(ms)
	}
	s.want(Ready, Avoid)
}

func TestWarmingIsTheLastChoice(t *testing.T) {
	s := begin(t)
	s.m.Warm(true)
	s.m.Report(s.now, true)
	s.want(Warming, LastResort)
	s.m.Restarted(s.now)
	s.m.Warm(true)
	s.want(Warming, LastResort)
	s.m.Warm(false)
	s.m.Report(s.now, true)
	s.want(Ready, Normal)
}
