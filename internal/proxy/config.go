package proxy

import (
	"log/slog"
	"net/http"
	"time"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// CutStream says how a stream that broke is ended towards the client.
type CutStream uint8

// The ways to end a broken stream.
const (
	CutBoth       CutStream = iota // an error event, then an end that the protocol shows as abnormal
	CutErrorEvent                  // an error event, then a clean end
	CutAbort                       // an abnormal end only
)

// Limits are the time limits of a request. FirstByte and Idle hold for streams and follow from Limit when they are 0 or
// longer.
type Limits struct {
	Limit     time.Duration // in total, from the request's arrival
	FirstByte time.Duration // from arrival to the first byte of the answer's body
	Idle      time.Duration // between two bytes of it
}

// withDefaults returns l with what follows from its Limit, which must be set.
func (l Limits) withDefaults() Limits {
	if l.FirstByte <= 0 || l.FirstByte > l.Limit {
		l.FirstByte = l.Limit
	}
	if l.Idle <= 0 || l.Idle > l.Limit {
		l.Idle = l.Limit
	}
	return l
}

// Config is what New needs. Directory is required; every other zero value means the default that is named.
type Config struct {
	Directory *pool.Directory
	Metrics   *telemetry.Metrics // nil: nothing is counted
	Access    *telemetry.Access  // nil: no access records
	Log       *slog.Logger       // nil: silence
	Memory    *flight.Memory     // shared with the gateway's other data planes; nil: its own

	Limits                      // zero values mean 60 minutes in total, and what follows from it
	Models    map[string]Limits // of models (by the name that clients say) whose limits differ
	KeepAlive time.Duration     // silence of a stream after which its client is sent a comment line; 0: never
	MaxBody   int64             // bytes of a request body; 0 means 64 MiB
	CutStream CutStream
	CORS      *CORS // pages that may use the API; nil: the endpoints answer for themselves

	// BodyMemory is how many bytes of request bodies may wait in memory over all requests, 0 meaning 8 MiB, small
	// ones twice that. What is beyond goes to unlinked files in TempDir ("" means the system's). The garbage
	// collector lets the process grow to about twice what lives.
	BodyMemory int64
	TempDir    string

	DebugHeaders bool // show the endpoint and the reason of the pick to clients

	// Previous is the Proxy that this one takes the place of, nil for none: connections, waiting bodies and the memory of
	// stored responses are shared with it, so BodyMemory, TempDir and Transport stay as they were.
	Previous *Proxy

	// Transport makes the transport of one pool at its first use; nil means NewTransport with its defaults.
	Transport func(pool string) http.RoundTripper
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Memory == nil {
		c.Memory = new(flight.Memory)
	}
	if c.Limit <= 0 {
		c.Limit = 60 * time.Minute
	}
	c.Limits = c.Limits.withDefaults()
	if c.MaxBody <= 0 {
		c.MaxBody = 64 << 20
	}
	if c.BodyMemory <= 0 {
		c.BodyMemory = 8 << 20
	}
	if c.Transport == nil {
		c.Transport = func(string) http.RoundTripper { return NewTransport(TransportConfig{}) }
	}
	return c
}
