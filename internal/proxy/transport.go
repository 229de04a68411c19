package proxy

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// TransportConfig tunes the connections to the endpoints of one pool. The zero value is right for vLLM.
type TransportConfig struct {
	// DialTimeout bounds one attempt to connect; 0 means 1.5 s: one SYN may be lost, it is sent again after 1 s. The
	// next endpoint is tried at once after it, so that a dead address costs this much at most.
	DialTimeout time.Duration

	// IdleTimeout is how long an unused connection is kept; 0 means 4 s. It must stay below the engine's own: uvicorn
	// closes after 5.0 s sharp, and a request that meets the close is lost.
	IdleTimeout time.Duration

	// Dial replaces the dialer, for tests on in-memory networks; nil dials TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// connBuffer is what a body that is read from is copied through on its way to an endpoint.
const connBuffer = 64 << 10

// NewTransport returns the transport of one pool. It keeps as many idle connections as were in use at once, asks for no
// compression, follows no proxy settings of the environment, and speaks HTTP/1.1, which is all that the engines speak.
func NewTransport(cfg TransportConfig) *http.Transport {
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = 1500 * time.Millisecond
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = 4 * time.Second
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	buffers := &sync.Pool{New: func() any { return new([connBuffer]byte) }}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &upstreamConn{Conn: c, buffers: buffers}, nil
		},
		Protocols:              &protocols,
		DisableCompression:     true, // bodies pass as they are; see also the identity request in header.go
		IdleConnTimeout:        cfg.IdleTimeout,
		MaxIdleConns:           0,    // no limit over all endpoints
		MaxIdleConnsPerHost:    4096, // bounded by what was in flight within the idle time
		TLSHandshakeTimeout:    2 * time.Second,
		MaxResponseHeaderBytes: 1 << 20,
		// A 4 KiB request with its headers leaves in one write.
		WriteBufferSize: 8 << 10,
		ReadBufferSize:  8 << 10,
	}
}
