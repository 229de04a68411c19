package sim

import (
	"errors"
	"fmt"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/route"
)

// Config is one run.
type Config struct {
	Endpoints []Endpoint
	Policy    Policy // the zero Policy is Ours
	Workload  Workload
	Seed      uint64

	Length time.Duration // arrivals end; 420 s when 0
	Warmup time.Duration // requests that arrive before do not count
	Grace  time.Duration // how long what is under way at the end may take to end; 60 s when 0, none when negative
	TPOT   time.Duration // of the SLO; 100 ms when 0, none when negative

	Reports  Reports
	Patience time.Duration // every client goes away whose answer is not complete by then; 0: those whose Request says so
	Gateways int           // 1 when 0; every request goes to a random one
	Exchange time.Duration // how late a gateway learns of the picks of the others; negative: never

	// Coefficients is what the gateway believes of the engines' steps; zero: the truth of the first endpoint.
	Coefficients route.Coefficients
	// Params changes the settings of the pool after those of the policy; nil: leave them.
	Params func(*route.Params)

	// Ties is where the picks of gateway 0 draw from to decide between equals; nil: from Seed.
	Ties func() uint64

	Sink        func(*Record)                 // gets every request as it ends; the Record is reused
	SampleEvery time.Duration                 // 0: no samples
	Sample      func(*Sample)                 // gets the state of every endpoint now and then; the Sample is reused
	Progress    func(now time.Duration) error // called once per virtual second; an error ends the run; nil: nobody watches
}

// Reports says how the endpoints' reports reach the gateways.
type Reports struct {
	Every time.Duration // 100 ms when 0
	Delay time.Duration // between what a report shows and its arrival
	Loss  float64       // share of reports that never arrive, [0,1)
}

// Endpoint describes one endpoint. The zero values of the second group mean an ordinary one.
type Endpoint struct {
	Engine engine.Config

	Slow    float64       // factor on step times; 1 when 0
	Ranks   int           // data-parallel engines behind the address; 1 when 0
	Join    time.Duration // when discovery shows it; its cache is empty
	Warm    bool          // when it joins, its cache is a copy of the fullest one of the fleet's, which nobody tells the gateways
	Leave   time.Duration // when discovery takes it away; it finishes what it has; 0: never
	Down    []Outage      // when its process is not there
	Hang    []Outage      // when its process stands still
	Buckets Buckets       // shapes that are padded and compiled, as on Gaudi; zero: none
	Window  int           // tokens of KV that it reports when that is not blocks times block size (hybrid models); 0: as the blocks

	// Fixed > 0 makes a stand-in without an engine: every first token comes after Fixed, the end Hold later, whatever runs.
	Fixed, Hold time.Duration
}

// Fleet returns n endpoints with one engine configuration.
func Fleet(n int, cfg engine.Config) []Endpoint {
	out := make([]Endpoint, n)
	for i := range out {
		out[i].Engine = cfg
	}
	return out
}

// DefaultEngine is the engine of the workloads W1 to W8b: Qwen3-32B on two H100, 307,328 tokens of KV.
func DefaultEngine() engine.Config {
	p, _ := engine.ProfileByName("qwen3-32b-h100-tp2")
	return engine.Config{Blocks: 307328/16 + 1, BlockSize: 16, MaxNumSeqs: 256, MaxBatchedTokens: 2048, PrefixCaching: true, Profile: p}
}

func (c Config) withDefaults() Config {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Length, 420*time.Second)
	def(&c.Grace, 60*time.Second)
	def(&c.TPOT, 100*time.Millisecond)
	def(&c.Reports.Every, 100*time.Millisecond)
	c.Grace, c.TPOT = max(0, c.Grace), max(0, c.TPOT)
	c.Gateways = max(1, c.Gateways)
	if c.Policy.Name == "" {
		c.Policy = Ours()
	}
	if c.Coefficients == (route.Coefficients{}) && len(c.Endpoints) > 0 {
		p := c.Endpoints[0].Engine.Profile
		c.Coefficients = route.Coefficients{A: p.A, B: p.B, C: p.C, P: p.P, Q: p.Q}
	}
	return c
}

func (c *Config) validate() error {
	if len(c.Endpoints) == 0 {
		return fmt.Errorf("checking the simulation: no endpoints")
	}
	for i := range c.Endpoints {
		if err := c.Endpoints[i].validate(); err != nil {
			return fmt.Errorf("checking endpoint %d: %w", i, err)
		}
	}
	if c.Reports.Loss < 0 || c.Reports.Loss >= 1 {
		return fmt.Errorf("checking the reports: a loss of %g is outside [0,1)", c.Reports.Loss)
	}
	return nil
}

func (e *Endpoint) validate() error {
	if err := e.Engine.Validate(); err != nil {
		return err
	}
	switch {
	case e.Slow < 0 || e.Ranks < 0 || e.Window < 0:
		return errors.New("a negative speed, rank count or window")
	case e.Leave > 0 && e.Leave <= e.Join:
		return fmt.Errorf("it leaves at %v, before it joins at %v", e.Leave, e.Join)
	case e.Warm && e.Join <= 0:
		return errors.New("it is warm and there from the start, when nothing is cached anywhere")
	case len(e.Hang) > 0 && e.Fixed > 0:
		return errors.New("a stand-in without an engine cannot hang")
	}
	for _, o := range append(e.Down[:len(e.Down):len(e.Down)], e.Hang...) {
		if o.From < e.Join || o.To != 0 && o.To <= o.From {
			return fmt.Errorf("it is not there from %v to %v: that begins before it joins, or ends before it begins", o.From, o.To)
		}
	}
	return nil
}
