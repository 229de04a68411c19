package pool

import (
	"fmt"
	"time"

	"pointsman.dev/pointsman/internal/route"
)

// Policy is what the operator asked for. The zero value finds out by itself.
type Policy uint8

// The policies of a pool.
const (
	Auto         Policy = iota // the engine's own prefix-caching setting decides
	Prefix                     // prefix-aware whatever the engine says
	LeastRequest               // fewest requests, prefixes ignored
)

// String returns the word of the configuration file.
func (p Policy) String() string {
	switch p {
	case Auto:
		return "auto"
	case Prefix:
		return "prefix"
	case LeastRequest:
		return "least_request"
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// Full holds the thresholds of the gates.
type Full struct {
	Waiting     int     // full from so many waiting requests on; 0 means 1
	MaxNumSeqs  int     // requests an engine runs at once; 0 finds out
	ProjectedKV float64 // projected KV use in (0,1] that makes an endpoint full; 0 means 0.95
	LongPrompt  int     // prompt tokens from which the waiting gate does not apply; 0 means 16384
}

// Queue bounds how many requests wait for an endpoint that is not full, and for how long.
type Queue struct {
	Max  int           // waiting requests; 0: none waits, and the model servers queue
	Wait time.Duration // of each; 0: as long as its caller lets it
}

// Config is the part of the configuration that a pool reads. It is a value: SetConfig replaces it whole.
type Config struct {
	Name     string
	Policy   Policy
	Gates    route.Gates
	WhenFull route.WhenFull
	Full     Full
	APIKey   string // sent to the endpoints as a bearer token; never logged, never shown

	Overflow bool // another pool of a model may take requests while this one is full

	Queue Queue         // requests that wait while every endpoint is full
	Warm  []WarmRequest // what an endpoint gets before users' requests
	Hold  time.Duration // how long a request waits for the first usable endpoint of a pool that has none; 0: not at all

	// Coefficients describe the engine's steps until it is known better; zero means the default of package route.
	Coefficients route.Coefficients

	// ReportInterval is how often the endpoints are asked for their reports; 0 means 200 ms. A report counts
	// as stale after StaleAfter, 0 meaning ten intervals and at least two seconds: the metrics page of a busy
	// engine was seen to take 1.5 s, and an endpoint is not unknown because it is busy.
	ReportInterval time.Duration
	StaleAfter     time.Duration
}

func (c Config) withDefaults() Config {
	if c.Full.Waiting <= 0 {
		c.Full.Waiting = 1
	}
	if c.Full.ProjectedKV <= 0 || c.Full.ProjectedKV > 1 {
		c.Full.ProjectedKV = 0.95
	}
	if c.Full.LongPrompt <= 0 {
		c.Full.LongPrompt = 16384
	}
	if c.ReportInterval <= 0 {
		c.ReportInterval = 200 * time.Millisecond
	}
	if c.StaleAfter <= 0 {
		c.StaleAfter = max(10*c.ReportInterval, 2*time.Second)
	}
	return c
}
