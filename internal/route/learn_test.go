package route

import (
	"math"
	"testing"
	"time"
)

// Kappa compares an endpoint with its pool: coefficients that are wrong for all say nothing about one.
func TestKappaIsRelative(t *testing.T) {
	var pool Averages
	a, b := Learner{Pool: &pool}, Learner{Pool: &pool}
	for i := range 30 {
		now := time.Duration(i) * time.Second
		a.ObserveTTFT(0.001, 0.1, now)
		if i%3 == 0 {
			b.ObserveTTFT(0.0012, 0.1, now)
		}
	}
	now := 30 * time.Second
	if a.Kappa(now) != 1 || b.Kappa(now) != 1 {
		t.Errorf("kappas %v, %v: a pool faster than its coefficients has no slow endpoint", a.Kappa(now), b.Kappa(now))
	}
	p := DefaultParams()
	pool.Apply(&p)
	if p.Scale < 0.009 || p.Scale > 0.012 {
		t.Errorf("scale %v, want about 0.01", p.Scale)
	}
}

func TestKappaOfASlowEndpoint(t *testing.T) {
	var pool Averages
	slow, other := Learner{Pool: &pool}, Learner{Pool: &pool}
	for i := range 60 {
		other.ObserveTTFT(0.1, 0.1, time.Duration(i)*time.Second)
	}
	now := 60 * time.Second
	slow.ObserveTTFT(1, 0.1, now)
	first := slow.Kappa(now)
	if first < 1.05 {
		t.Errorf("kappa %v after one answer that took 10 times as long", first)
	}
	for range 20 {
		now += 100 * time.Millisecond
		slow.ObserveTTFT(0.1, 0.01, now)
		other.ObserveTTFT(0.1, 0.1, now)
		other.ObserveTTFT(0.1, 0.1, now)
	}
	if k := slow.Kappa(now); k < 3 || k > 10 {
		t.Errorf("kappa %v after 21 of them", k)
	}
	if k := slow.Kappa(now + 5*time.Minute); k != 1 {
		t.Errorf("kappa %v after five minutes without a request, want 1: it may have recovered", k)
	}
	slow.Reset()
	if slow.Kappa(now) != 1 || slow.Pool != &pool {
		t.Error("Reset forgets the observations and keeps the pool")
	}
}

// A stall that many requests of an endpoint share is one observation: a fresh endpoint is not kept out for its first moment.
func TestKappaOfOneMoment(t *testing.T) {
	var pool Averages
	fresh, other := Learner{Pool: &pool}, Learner{Pool: &pool}
	for i := range 60 {
		other.ObserveTTFT(0.1, 0.1, time.Duration(i)*time.Second)
	}
	now := 60 * time.Second
	for i := range 12 { // picked at 60 s, all answered 2 s later
		fresh.ObserveTTFT(2, 0.1, now+2*time.Second+time.Duration(i)*time.Millisecond)
	}
	now += 2*time.Second + 11*time.Millisecond
	if k := fresh.Kappa(now); k < 1.1 || k > 1.5 {
		t.Errorf("kappa %v after twelve answers that shared a stall, want that of one", k)
	}
	for range 5 {
		now += 100 * time.Millisecond
		fresh.ObserveTTFT(0.1, 0.1, now)
	}
	if k := fresh.Kappa(now); k != 1 {
		t.Errorf("kappa %v after five more that were as fast as any", k)
	}
	// Answers that keep coming slowly are seen for what they are, however many are under way at once.
	var slow Learner
	slow.Pool = &pool
	for i := range 200 {
		now += 100 * time.Millisecond
		slow.ObserveTTFT(1, 0.1, now)
		other.ObserveTTFT(0.1, 0.1, now)
		other.ObserveTTFT(0.1, 0.1, now)
		if i == 100 && slow.Kappa(now) < 2 {
			t.Errorf("kappa %v after ten seconds in which ten slow answers were always under way", slow.Kappa(now))
		}
	}
}

func TestKappaBounds(t *testing.T) {
	var l Learner
	now := time.Duration(0)
	for range 100 {
		now += time.Second
		l.ObserveTTFT(1, 1e-9, now)
	}
	if k := l.Kappa(now); k != 10 {
		t.Errorf("kappa %v, want 10 at most", k)
	}
	for _, v := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		l.ObserveTTFT(v, 1, now)
		l.ObserveTTFT(1, v, now)
	}
	if k := l.Kappa(now); k != 10 {
		t.Errorf("kappa %v after nonsense", k)
	}
	l.ObserveTTFT(math.MaxFloat64, 1, now)
	l.Reset()
	for range 100 {
		now += time.Second
		l.ObserveTTFT(1e-9, 1e9, now)
	}
	if k := l.Kappa(now); k != 0.2 {
		t.Errorf("kappa %v, want 0.2 at least", k)
	}
}

func TestRho(t *testing.T) {
	var l Learner
	now := time.Duration(0)
	for range 1200 {
		now += 100 * time.Millisecond
		l.BookWork(0.05, now)
	}
	if r := l.Rho(now); r < 0.47 || r > 0.53 {
		t.Errorf("rho %v for half a second of work per second", r)
	}
	if r := l.Rho(now + 2*time.Minute); r > 0.02 {
		t.Errorf("rho %v two minutes later", r)
	}
	l.BookWork(math.Inf(1), now)
	if r := l.Rho(now); r != 0.9 {
		t.Errorf("rho %v, want 0.9 at most", r)
	}
}

func TestAverages(t *testing.T) {
	var a Averages
	p := DefaultParams()
	want := p
	a.Apply(&p)
	if p != want {
		t.Errorf("averages of nothing changed %+v to %+v", want, p)
	}
	for range 200 {
		a.ObserveOutput(1000, 50)
		a.ObservePrompt(3000, 1000)
		a.ObserveResidence(2)
	}
	a.ObserveOutput(1000, 0)
	a.ObservePrompt(10, 0)
	a.ObserveResidence(-1)
	a.Apply(&p)
	if math.Abs(p.MeanOutput-50) > 1e-9 || math.Abs(p.BytesPerToken-3) > 1e-9 || math.Abs(p.Residence-2) > 1e-9 {
		t.Errorf("output %v, bytes per token %v, residence %v", p.MeanOutput, p.BytesPerToken, p.Residence)
	}
}

// Documents have other answers than chats: what is expected of one size of prompt is what that size had.
func TestOutputBySize(t *testing.T) {
	var a Averages
	if got := a.Output(1000, 0); got != 200 {
		t.Errorf("%d tokens before anything was seen, want 200", got)
	}
	if got := a.Output(1000, 30); got != 30 {
		t.Errorf("%d tokens of at most 30", got)
	}
	for i := range 600 {
		a.ObserveOutput(800, 300)
		if i%20 == 0 {
			a.ObserveOutput(70_000, 2000)
		}
	}
	for _, c := range []struct{ prompt, limit, lo, hi int }{
		{900, 0, 295, 320}, {70_000, 0, 1750, 2000}, {70_000, 500, 500, 500}, {5000, 0, 300, 450}, {-1, 0, 300, 450}, {1 << 30, 0, 300, 450},
	} {
		if got := a.Output(c.prompt, c.limit); got < c.lo || got > c.hi {
			t.Errorf("%d tokens for a prompt of %d (limit %d), want %d to %d", got, c.prompt, c.limit, c.lo, c.hi)
		}
	}
}
