// Package sim replays a workload in virtual time through the code that picks in the gateway (route, prefix, ledger, health)
// against models of vLLM (engine), so that a routing decision can be judged before a GPU is touched.
//
//	res, err := sim.Run(sim.Config{
//		Endpoints: sim.Fleet(8, sim.DefaultEngine()),
//		Policy:    sim.Ours(),
//		Workload:  sim.W1,
//		Length:    420 * time.Second,
//		Warmup:    30 * time.Second,
//		Seed:      1,
//		Sink:      func(r *sim.Record) { ... }, // one per request, as it ends
//	})
//
// A Workload is a function that gets the Sim before its first event. It asks it to wake it up (At), sends requests (Send) and goes
// on when they end (Request.Then): so open and closed loops, generators and traces are the same thing, and a trace is read
// one record at a time. What a run holds in memory is what is in flight, and what the workload keeps.
//
// Pieces, in the order of a request: workload.go (what clients do), gateway.go (the books of one gateway, kept as package pool keeps
// them), policy.go and baselines.go (who picks), node.go and outage.go (an endpoint: engines, reports, and when it is not there), exchange.go (gateways that tell
// each other their picks), tally.go (what came of it).
//
// Same Config, same Seed: same bytes. There is no clock, no goroutine and no global state; two Sims may run beside each other.
// Every draw of the workload comes from Sim.Rand, every draw of the picks from another stream: all policies see the
// same open-loop arrivals.
package sim
