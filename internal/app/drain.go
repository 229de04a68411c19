package app

import (
	"context"
	"log/slog"
	"time"
)

// cutGrace is how long a cut request may take to write its error event.
const cutGrace = 2 * time.Second

// drainLogEvery is how often a drain that goes on says what it waits for.
const drainLogEvery = 15 * time.Second

// Drain ends the gateway in order. From the first moment /readyz is false and answers ask their clients to reconnect; for
// delay requests are still accepted, because those who send them learn of the end later. Then the listener closes and what
// is in flight may go on for at most patience. What is left then, or when ctx ends, is cut, streams with an error event. It
// returns how many requests were cut.
func (g *Gateway) Drain(ctx context.Context, delay, patience time.Duration) int {
	g.draining.Store(true)
	g.proxy.Load().Leave()
	if g.processor != nil {
		g.processor.Leave()
	}
	stop := g.sayDraining()
	defer stop()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cut := 0
	if !g.finish(wait) {
		cut, _ = g.requestsInFlight()
		g.proxy.Load().CutAll()
		if g.processor != nil {
			g.processor.CutAll()
		}
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutGrace)
		defer cancel()
		g.finish(grace) // what is left then is closed by Close
	}
	g.Close()
	return cut
}

// finish closes the API's listener and waits until nothing is in flight, WebSockets included, which net/http has given up to
// us. It returns false when ctx ends first.
func (g *Gateway) finish(ctx context.Context) bool {
	envoy := make(chan bool, 1)
	g.done.Go(func() { envoy <- g.finishExtProc(ctx) })
	if g.api.Shutdown(ctx) != nil || !<-envoy {
		return false
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if n, _ := g.requestsInFlight(); n == 0 {
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// sayDraining logs what the drain waits for, now and then.
func (g *Gateway) sayDraining() (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(drainLogEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.log.Info("still draining", g.inFlight())
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// inFlight is how much is in flight, for a log record.
func (g *Gateway) inFlight() slog.Attr {
	n, oldest := g.requestsInFlight()
	return slog.Group("in_flight", "requests", n, "oldest", oldest.Round(time.Millisecond).String())
}

// drainingRequests is what the gauge shows: what a drain still waits for.
func (g *Gateway) drainingRequests() int {
	if !g.draining.Load() {
		return 0
	}
	n, _ := g.requestsInFlight()
	return n
}
