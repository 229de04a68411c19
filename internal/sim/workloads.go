package sim

import "time"

// Scenario is a workload with the fleet and the reports that belong to it.
type Scenario struct {
	ID, Name string
	Workload Workload
	Config   func() Config // fleet, reports, length and warm-up; without Workload, Policy and Seed
}

// Scenarios returns the workloads W1 to W8b, each hard for some policy: 8 endpoints, 420 s of which the first 30 do not count.
func Scenarios() []Scenario {
	return []Scenario{
		{"W1", "KV exhaustion", W1, eight},
		{"W2", "hot prefix", W2, eight},
		{"W3", "tenants as large as the cache", W3, eight},
		{"W4", "chat", W4, eight},
		{"W5", "agents", W5, eight},
		{"W6", "burst, fresh endpoints", W6, fourAndFour},
		{"W7", "head of line", W7, eight},
		{"W8a", "invisible load", W8a, eight},
		{"W8b", "stale reports", W8b, stale},
	}
}

func eight() Config {
	return Config{Endpoints: Fleet(8, DefaultEngine()), Length: 420 * time.Second, Warmup: 30 * time.Second}
}

func fourAndFour() Config {
	c := eight()
	for i := 4; i < 8; i++ {
		c.Endpoints[i].Join = 180 * time.Second
	}
	return c
}

func stale() Config {
	c := eight()
	c.Reports.Every = 5 * time.Second
	return c
}

// shared is the first id of texts that many requests begin with.
const shared = 1 << 40

// unique returns a piece of text that nobody else sends.
func (s *Sim) unique(tokens int) Part { return Part{s.NewID(), tokens} }

// document sends a long prompt of its own.
func (s *Sim) document(lo, hi, olo, ohi int, slo time.Duration) {
	s.Send(&Request{Parts: []Part{s.unique(s.Uniform(lo, hi))}, Output: s.Uniform(olo, ohi), SLO: slo, Class: "document"})
}

// W1 is chat among documents that fill the KV memory.
func W1(s *Sim) {
	s.Poisson(6, func() {
		s.Send(&Request{Parts: []Part{s.unique(s.Uniform(400, 1200))}, Output: s.Uniform(100, 500), SLO: 2 * time.Second, Class: "chat"})
	})
	s.Poisson(0.34, func() { s.document(40000, 100000, 500, 3000, 30*time.Second) })
}

// W2 is one long system prompt that every request begins with.
func W2(s *Sim) {
	s.Poisson(45, func() {
		s.Send(&Request{Parts: []Part{{shared, 8192}, s.unique(s.Uniform(150, 450))}, Output: s.Uniform(100, 200), SLO: time.Second, Class: "chat"})
	})
}

// tenants are shared prefixes of 6,000 tokens, some more popular than others, with questions of their own.
type tenants struct {
	n           int
	zipf, rate  float64
	ask, answer [2]int
	slo         time.Duration
	draw        func() int
}

func (w tenants) start(s *Sim) {
	if w.draw == nil {
		w.draw = s.Zipf(w.n, w.zipf)
	}
	s.Poisson(w.rate, func() {
		s.Send(&Request{Parts: []Part{{shared + uint64(w.draw()), 6000}, s.unique(s.Uniform(w.ask[0], w.ask[1]))},
			Output: s.Uniform(w.answer[0], w.answer[1]), SLO: w.slo, Class: "chat"})
	})
}

// W3 is as many tenants as the caches hold together.
func W3(s *Sim) {
	tenants{n: 400, zipf: 0.8, rate: 18.7, ask: [2]int{800, 1600}, answer: [2]int{200, 600}, slo: 2 * time.Second}.start(s)
}

// W4 is chat with think times: a shared beginning, a document, a few turns. The number of turns is rounded down. Rounded to the
// nearest there would be 13 % more of them, and what is asked for more than the fleet can do from the fourth minute on,
// whoever picks.
func W4(s *Sim) {
	s.Poisson(8.8, func() {
		doc := max(1, int(s.Lognormal(3000, 2500)))
		turns := max(1, int(s.Lognormal(4, 2.5)))
		s.chat([]Part{{shared, 1000}, s.unique(doc)}, turns)
	})
}

// chat sends one turn, and the next when it is answered and thought over.
func (s *Sim) chat(history []Part, turns int) {
	parts := with(history, s.unique(max(1, int(s.Lognormal(120, 150)))))
	s.Send(&Request{Parts: parts, Output: max(2, int(s.Lognormal(300, 150))), SLO: 1500 * time.Millisecond, Class: "chat", Then: func(r *Record) {
		if r.Outcome != Done || turns <= 1 {
			return
		}
		next := with(parts, r.Answer)
		s.later(secs(s.Lognormal(45, 40)), func() { s.chat(next, turns-1) })
	}})
}

// later runs do in d, unless arrivals have ended by then.
func (s *Sim) later(d time.Duration, do func()) {
	if s.now+d < s.cfg.Length {
		s.After(d, do)
	}
}

// with returns a copy of parts that goes on with more.
func with(parts []Part, more ...Part) []Part {
	out := make([]Part, 0, len(parts)+len(more)+2)
	return append(append(out, parts...), more...)
}

// W5 is agents with tools: long shared prompts, short gaps, growing contexts, and turns that fan out.
func W5(s *Sim) {
	draw := s.Zipf(4, 1)
	s.Poisson(0.55, func() {
		s.agent([]Part{{shared + uint64(draw()), 12000}, s.unique(s.Uniform(1000, 3000))}, 1+int(15*s.Rand.ExpFloat64()), true)
	})
}

const agentMost = 120000 // tokens of context at which an agent gives up

func (s *Sim) agent(parts []Part, turns int, fan bool) {
	s.Send(&Request{Parts: parts, Output: max(2, int(s.Lognormal(150, 200))), SLO: 3 * time.Second, Class: "agent", Then: func(r *Record) {
		if r.Outcome != Done || turns <= 1 {
			return
		}
		growth := min(20000, max(1, int(s.LognormalMedian(630, 1.38))))
		next := with(parts, r.Answer, s.unique(growth))
		if Tokens(next) < agentMost {
			s.later(secs(s.Lognormal(4, 8)), func() { s.agent(next, turns-1, fan) })
		}
	}})
	if fan && s.Rand.Float64() < 0.02 {
		for range 6 {
			s.agent(with(parts, s.unique(s.Uniform(200, 800))), 6, false)
		}
	}
}

// W6 is three times the load from 120 s on, and as many endpoints again, with empty caches, from 180 s on.
func W6(s *Sim) {
	w := tenants{n: 60, zipf: 0.8, rate: 9.6, ask: [2]int{400, 1200}, answer: [2]int{150, 350}, slo: 2 * time.Second}
	w.start(s)
	w.rate *= 2
	s.At(120*time.Second, func() { w.start(s) })
}

// W7 is short chat, and now and then three long prompts at once.
func W7(s *Sim) {
	s.Poisson(30, func() {
		s.Send(&Request{Parts: []Part{{shared, 512}, s.unique(s.Uniform(100, 300))}, Output: s.Uniform(50, 150), SLO: time.Second, Class: "chat"})
	})
	s.Poisson(0.1, func() {
		for i := range 3 {
			s.After(time.Duration(i)*20*time.Millisecond, func() { s.document(80000, 120000, 100, 100, 40*time.Second) })
		}
	})
}

// W8a is tenants, and work that comes to endpoint 0 past the gateway.
func W8a(s *Sim) {
	tenants{n: 150, zipf: 0.6, rate: 20, ask: [2]int{200, 600}, answer: [2]int{150, 350}, slo: 2 * time.Second}.start(s)
	s.Poisson(7, func() { s.Bypass(0, s.Uniform(1500, 2500), s.Uniform(300, 500)) })
}

// W8b is tenants and documents under reports that come every 5 s.
func W8b(s *Sim) {
	tenants{n: 150, zipf: 0.8, rate: 16.2, ask: [2]int{200, 600}, answer: [2]int{150, 350}, slo: 2 * time.Second}.start(s)
	s.Poisson(0.135, func() { s.document(40000, 100000, 500, 2000, 30*time.Second) })
}
