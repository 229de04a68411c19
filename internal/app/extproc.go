package app

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/extproc"
)

// meetEnvoy opens the listener of the external processor and starts it, if there is to be one.
func (g *Gateway) meetEnvoy(cfg *config.Config) error {
	if cfg.ExtProc == nil {
		return nil
	}
	c := g.extprocConfig(cfg)
	if files := cfg.ExtProc.TLS; files != nil {
		var err error
		if c.TLS, err = newTLS(*files, g.log); err != nil {
			return err
		}
	}
	ln, err := net.Listen("tcp", cfg.ExtProc.Listen)
	if err != nil {
		return fmt.Errorf("opening the extproc listener %s: %w (the key is `extproc.listen`)", cfg.ExtProc.Listen, err)
	}
	g.processor, g.extprocAddr = extproc.New(c), dialable(ln.Addr())
	g.log.Info("listening for Envoy", "extproc", ln.Addr().String(), "tls", c.TLS != nil)
	g.done.Go(func() {
		if err := g.processor.Serve(ln); err != nil {
			g.failed <- fmt.Errorf("serving the extproc listener: %w", err)
		}
	})
	g.done.Go(func() { g.processor.Run(g.ctx) })
	return nil
}

// extprocConfig is what the external processor reads of a configuration.
func (g *Gateway) extprocConfig(cfg *config.Config) extproc.Config {
	return extproc.Config{
		Directory: g.dir, Metrics: g.metrics, Access: g.access(cfg), Log: g.log, Memory: &g.memory,
		Ready:   func() bool { ready, _ := g.Ready(); return ready },
		MaxBody: cfg.MaxBody, DebugHeaders: cfg.DebugHeaders, OtherPaths: cfg.ExtProc.OtherPaths, Conformance: cfg.ExtProc.Conformance,
	}
}

// extprocMoved reports whether the listener of the external processor would be another one.
func extprocMoved(now, before *config.ExtProc) bool {
	if now == nil || before == nil {
		return now != before
	}
	return now.Listen != before.Listen || !reflect.DeepEqual(now.TLS, before.TLS)
}

// ExtProc is the address of the external processor as seen from this machine, "" if there is none.
func (g *Gateway) ExtProc() string { return g.extprocAddr }

// requestsInFlight is how many requests are in flight on either data plane, and the age of the oldest.
func (g *Gateway) requestsInFlight() (int, time.Duration) {
	n, oldest := g.proxy.Load().InFlight()
	if g.processor != nil {
		more, older := g.processor.InFlight()
		n, oldest = n+more, max(oldest, older)
	}
	return n, oldest
}

// finishExtProc accepts no further streams and waits until the last one has ended; false when ctx ends first.
func (g *Gateway) finishExtProc(ctx context.Context) bool {
	if g.processor == nil {
		return true
	}
	done := make(chan struct{})
	g.done.Go(func() { g.processor.Finish(); close(done) })
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
