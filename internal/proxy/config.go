package proxy

import (
	"log/slog"
	"net/http"
	"time"

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

// Config is what New needs. Directory is required; every other zero value means the default that is named.
type Config struct {
	Directory *pool.Directory
	Metrics   *telemetry.Metrics // nil: nothing is counted
	Access    *telemetry.Access  // nil: no access records
	Log       *slog.Logger       // nil: silence

	Limit     time.Duration // of a request in total, from its arrival; 0 means 60 minutes
	FirstByte time.Duration // streams: from arrival to the first byte of the answer's body; 0 means Limit
	Idle      time.Duration // streams: between two bytes; 0 means Limit
	MaxBody   int64         // bytes of a request body; 0 means 64 MiB
	CutStream CutStream

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
	if c.Limit <= 0 {
		c.Limit = 60 * time.Minute
	}
	if c.FirstByte <= 0 || c.FirstByte > c.Limit {
		c.FirstByte = c.Limit
	}
	if c.Idle <= 0 || c.Idle > c.Limit {
		c.Idle = c.Limit
	}
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
