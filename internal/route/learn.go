package route

import "time"

// Learner learns about one endpoint from what its requests did. The zero value knows nothing. Not safe for concurrent
// use.
type Learner struct {
	kappa float64
	rho   float64
	at    time.Duration
}

// ObserveTTFT records a request's time to first token, observed from pick to first token, against Pick.Predicted; both in seconds.
func (l *Learner) ObserveTTFT(observed, predicted float64, now time.Duration) {}

// BookWork records Pick.Work at the pick.
func (l *Learner) BookWork(seconds float64, now time.Duration) {}

// Kappa returns observed over predicted time to first token, in [0.2, 10]; 1 when nothing is known.
func (l *Learner) Kappa(now time.Duration) float64 { return 1 }

// Rho returns the share of time that booked work keeps the endpoint busy, in [0, 0.9].
func (l *Learner) Rho(now time.Duration) float64 { return 0 }

// Reset forgets everything: the process behind the endpoint is another one.
func (l *Learner) Reset() { *l = Learner{} }

// Averages learns about a pool's requests. The zero value knows nothing. Not safe for concurrent use.
type Averages struct {
	output, bytes, tokens, residence float64
}

// ObserveOutput records the number of output tokens of a finished request.
func (a *Averages) ObserveOutput(tokens int) {}

// ObservePrompt records the canonical bytes of a prompt and the tokens that the engine counted.
func (a *Averages) ObservePrompt(bytes, tokens int) {}

// ObserveResidence records the seconds from pick to end of a finished request.
func (a *Averages) ObserveResidence(seconds float64) {}

// Apply writes what is known into p and leaves the rest.
func (a *Averages) Apply(p *Params) {}
