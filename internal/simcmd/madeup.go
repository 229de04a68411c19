package simcmd

import (
	"fmt"
	"os"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/sim"
)

// madeUp reads a workload in YAML.
func (w *what) madeUp(file string) (*source, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the workload: %w", err)
	}
	y, err := config.ParseWorkload(file, data)
	if err != nil {
		return nil, err
	}
	scenario := sim.Scenario{ID: file, Config: func() sim.Config { return sim.Config{Length: y.Length} }}
	scenario.Workload = func(s *sim.Sim) {
		for i := range y.Classes {
			w.class(s, &y.Classes[i], uint64(i))
		}
	}
	return &source{name: file, scenario: scenario, length: y.Length, sets: y.Endpoints}, nil
}

// class starts the conversations of class number k.
func (w *what) class(s *sim.Sim, c *config.WorkloadClass, k uint64) {
	draw := s.Zipf(c.Texts, c.Zipf)
	slo := c.TTFT
	if slo == 0 {
		slo = w.replay.SLO
	}
	s.Poisson(c.Rate*w.replay.Rate, func() {
		var parts []sim.Part
		if c.Share > 0 {
			parts = append(parts, sim.Part{ID: 1<<41 + k<<32 + uint64(draw()), Tokens: c.Share})
		}
		w.turn(s, c, slo, parts, c.Turns)
	})
}

// turn sends the next turn of a conversation, of which so many are left.
func (w *what) turn(s *sim.Sim, c *config.WorkloadClass, slo time.Duration, said []sim.Part, left int) {
	parts := append(said[:len(said):len(said)], sim.Part{ID: s.NewID(), Tokens: s.Uniform(c.Prompt[0], c.Prompt[1])})
	r := &sim.Request{Parts: parts, Output: s.Uniform(c.Output[0], c.Output[1]), Answer: s.NewID(), Class: c.Name, SLO: slo, Patience: c.Patience}
	if left > 1 {
		r.Then = func(rec *sim.Record) {
			if rec.Outcome != sim.Done {
				return
			}
			next := append(parts[:len(parts):len(parts)], rec.Answer)
			pause := time.Duration(s.Rand.ExpFloat64() * float64(c.Think))
			s.After(pause, func() {
				if s.Now() < s.Length() {
					w.turn(s, c, slo, next, left-1)
				}
			})
		}
	}
	s.Send(r)
}
