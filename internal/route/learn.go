package route

import (
	"math"
	"math/bits"
	"time"
)

// Constants of learning. The gains keep a memory of about 20 requests per endpoint and 50 per pool.
const (
	kappaGain  = 0.05
	kappaPrior = 4                // observations that the pool's mean counts for
	kappaDead  = 0.35             // log of observed/predicted within which endpoints are equal: noise, not speed
	kappaFade  = 30 * time.Second // unused knowledge fades with this time constant
	rhoWindow  = 30               // seconds
	poolGain   = 0.02
	maxLog     = 6.9 // ln 1000: bound of one observation

	outputSizes = 7 // classes of prompts by length
	outputPrior = 4 // observations of a class that the pool's mean counts for
)

// Learner learns about one endpoint from what its requests did. The zero value knows nothing. Not safe for concurrent
// use.
type Learner struct {
	Pool *Averages // what the endpoint is compared with; nil: with the coefficients as they are

	sum, weight float64 // of log(observed/predicted), both fading
	seen        time.Duration
	moment      moment
	work        float64 // seconds of booked work, fading
	booked      time.Duration
}

// ObserveTTFT records a request's time to first token, observed from pick to first token, against its Pick.Predicted;
// both in seconds. Values that are not positive and finite are ignored.
func (l *Learner) ObserveTTFT(observed, predicted float64, now time.Duration) {
	if positive(observed, 0) == 0 || positive(predicted, 0) == 0 {
		return
	}
	ratio := within(math.Log(observed/predicted), -maxLog, maxLog, 0)
	if l.Pool != nil {
		l.Pool.scale.add(ratio, poolGain)
	}
	l.fade(now)
	picked := now - time.Duration(min(observed, 1e9)*float64(time.Second))
	weight, change := l.moment.add(ratio, picked, now)
	l.sum += change
	l.weight += weight
	if most := 1 / kappaGain; l.weight > most {
		l.sum *= most / l.weight
		l.weight = most
	}
}

// moment is a group of requests that were under way together. They say one thing about their endpoint, not many: a
// stall of half a second that a dozen requests of a fresh endpoint share would otherwise count as a dozen proofs, and keep
// all others away for a minute.
type moment struct {
	at      time.Duration // when the first of them had its first token
	n, mean float64       // of their ratios
}

// add returns the weight that one more ratio adds, and the change of the sum.
func (m *moment) add(ratio float64, picked, now time.Duration) (weight, change float64) {
	if m.n == 0 || picked >= m.at {
		*m = moment{at: now, n: 1, mean: ratio}
		return 1, ratio
	}
	m.n++
	change = (ratio - m.mean) / m.n
	m.mean += change
	return 0, change
}

// BookWork records Pick.Work at the pick.
func (l *Learner) BookWork(seconds float64, now time.Duration) {
	l.work = l.workAt(now) + within(seconds, 0, 1e4, 0)
	l.booked = max(l.booked, now)
}

// Kappa returns how much slower the endpoint answers than its pool, both against prediction, in [0.2, 10]. It is 1 when
// nothing is known, for differences that noise explains, and again when the knowledge has faded for want of requests:
// so an endpoint that recovered is found out.
func (l *Learner) Kappa(now time.Duration) float64 {
	f := faded(now-l.seen, kappaFade)
	w, sum := l.weight*f, l.sum*f
	mean := 0.0
	if l.Pool != nil {
		mean = l.Pool.scale.value
	}
	k := (sum - w*mean) / (w + kappaPrior)
	switch {
	case k > kappaDead:
		k -= kappaDead
	case k < -kappaDead:
		k += kappaDead
	default:
		k = 0
	}
	return within(math.Exp(k), 0.2, 10, 1)
}

// Rho returns the share of time that booked work keeps the endpoint busy, in [0, 0.9].
func (l *Learner) Rho(now time.Duration) float64 {
	scale := 1.0
	if l.Pool != nil {
		scale = l.Pool.scaleFactor()
	}
	return within(l.workAt(now)/rhoWindow*scale, 0, maxRho, 0)
}

// Reset forgets everything: the process behind the endpoint is another one.
func (l *Learner) Reset() { *l = Learner{Pool: l.Pool} }

func (l *Learner) fade(now time.Duration) {
	f := faded(now-l.seen, kappaFade)
	l.sum, l.weight, l.seen = l.sum*f, l.weight*f, max(l.seen, now)
}

func (l *Learner) workAt(now time.Duration) float64 {
	return l.work * faded(now-l.booked, rhoWindow*time.Second)
}

// faded is what is left after d with time constant tau.
func faded(d, tau time.Duration) float64 {
	if d <= 0 {
		return 1
	}
	return math.Exp(-float64(d) / float64(tau))
}

// Averages learns about a pool's requests. The zero value knows nothing. Not safe for concurrent use.
type Averages struct {
	output, residence mean
	outputs           [outputSizes]mean // by size of the prompt
	scale             mean              // log(observed/predicted) time to first token
	bytes, tokens     float64
}

// mean is a running mean that is plain at first and exponential later.
type mean struct {
	value, n float64
}

func (m *mean) add(v, gain float64) {
	m.n = min(m.n+1, 1e9)
	m.value += (v - m.value) * max(1/m.n, gain)
}

// ObserveOutput records the number of output tokens of a finished request with a prompt of so many tokens.
func (a *Averages) ObserveOutput(prompt, tokens int) {
	if tokens > 0 {
		a.output.add(float64(tokens), poolGain)
		a.outputs[size(prompt)].add(float64(tokens), poolGain)
	}
}

// Output returns the tokens that the answer to a prompt of so many tokens is expected to have, at least 1.
// Documents to be summed up and chats have answers of different lengths, so it is the mean of prompts of about the same
// size, as far as those are known, and never more than what was asked for (0: no limit).
func (a *Averages) Output(prompt, maxTokens int) int {
	m := &a.outputs[size(prompt)]
	known := m.n / (m.n + outputPrior)
	overall := a.output.value
	if a.output.n == 0 {
		overall = defaultOutput
	}
	expected := known*m.value + (1-known)*overall
	if maxTokens > 0 {
		expected = min(expected, float64(maxTokens))
	}
	return int(max(1, min(expected, math.MaxInt32)))
}

// size is the class of a prompt's length: powers of four, from 256 tokens up to 256k.
func size(prompt int) int {
	return min(max(0, (bits.Len(uint(max(0, prompt)))-7)/2), outputSizes-1)
}

// ObservePrompt records the canonical bytes of a prompt and the tokens that the engine counted.
func (a *Averages) ObservePrompt(bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 {
		return
	}
	const keep = 1 - poolGain
	a.bytes, a.tokens = a.bytes*keep+float64(bytes), a.tokens*keep+float64(tokens)
}

// ObserveResidence records the seconds from pick to end of a finished request.
func (a *Averages) ObserveResidence(seconds float64) {
	if positive(seconds, 0) > 0 {
		a.residence.add(min(seconds, 1e5), poolGain)
	}
}

// Apply writes what is known into p and leaves the rest.
func (a *Averages) Apply(p *Params) {
	if a.output.n > 0 {
		p.MeanOutput = a.output.value
	}
	if a.residence.n > 0 {
		p.Residence = a.residence.value
	}
	if a.tokens > 0 {
		p.BytesPerToken = within(a.bytes/a.tokens, 0.25, 32, p.BytesPerToken)
	}
	if a.scale.n > 0 {
		p.Scale = a.scaleFactor()
	}
}

func (a *Averages) scaleFactor() float64 { return math.Exp(a.scale.value) }
