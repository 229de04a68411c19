package acceptance

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/vllmsim"
)

// An engine that stands still behind a healthy front end (/health says 200, the gauges are frozen, requests hang) is found out
// by what does not move: it gets no new work, and serves again as soon as it moves.
func TestZombie(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes the 10 s of silence that count")
	}
	cfg := simConfig()
	cfg.Speed = 20
	sims, urls := simFleet(t, 2, cfg)
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 2)
	zombie := sims[0]
	zombie.SetFault(vllmsim.Fault{Kind: vllmsim.FaultZombie})

	ctx, stop := context.WithCancel(t.Context())
	var lost, served atomic.Int64
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				patience, cancel := context.WithTimeout(ctx, 3*time.Second)
				req, _ := http.NewRequestWithContext(patience, "POST", g.API()+"/v1/chat/completions",
					jsonBody(chatBody([]message{{"user", words(1000*c+i, 300)}}, 10)))
				req.Header.Set("Content-Type", "application/json")
				if r, err := http.DefaultClient.Do(req); err != nil {
					lost.Add(1)
				} else {
					io.Copy(io.Discard, r.Body)
					r.Body.Close()
					served.Add(1)
				}
				cancel()
			}
		})
	}
	eventually(t, patience, func() string {
		if s := endpointStatus(t, g, zombie.name).State; s == "ready" {
			return "the zombie is still ready"
		}
		return ""
	})
	found, done, got, since := lost.Load(), served.Load(), endpointStatus(t, g, zombie.name).Picks, time.Now()
	eventually(t, patience, func() string {
		return unless(served.Load() >= done+200 && time.Since(since) > 3*time.Second, "the other one serves nothing")
	})
	more, took := endpointStatus(t, g, zombie.name).Picks-got, time.Since(since)
	if float64(more) > 2*math.Ceil(took.Seconds()/3) { // at most a trial now and then
		t.Errorf("it got %d requests in the %v after it was found out", more, took)
	}
	zombie.ClearFaults()
	before := endpointStatus(t, g, zombie.name).Picks
	eventually(t, patience, func() string {
		e := endpointStatus(t, g, zombie.name)
		if e.State != "ready" || e.Picks < before+5 {
			return fmt.Sprintf("state %s, %d picks since it moves again", e.State, e.Picks-before)
		}
		return ""
	})
	stop()
	clients.Wait()
	t.Logf("%d served, %d lost, %d of them before it was found out", served.Load(), lost.Load(), found)
}
