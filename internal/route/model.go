package route

// Policy says what a pick is about.
type Policy uint8

// Policies. Prefix weighs what an endpoint already holds of the prompt; LeastRequest counts requests only.
const (
	Prefix Policy = iota
	LeastRequest
)

// String returns the config word of the policy.
func (p Policy) String() string {
	if p == LeastRequest {
		return "least_request"
	}
	return "prefix"
}

// Gates says how strictly full endpoints are set aside.
type Gates uint8

// Gate modes. GatesDefault lifts the waiting gate for long prompts, GatesStrict applies every gate to every prompt,
// GatesOff applies none.
const (
	GatesDefault Gates = iota
	GatesStrict
	GatesOff
)

// String returns the config word of the mode.
func (g Gates) String() string {
	switch g {
	case GatesStrict:
		return "strict"
	case GatesOff:
		return "off"
	}
	return "default"
}

// WhenFull says how a pick is made when every endpoint is full.
type WhenFull uint8

// Fallbacks. Seconds takes the lowest expected cost; Requests takes the fewest requests, the literal shortest queue.
const (
	Seconds WhenFull = iota
	Requests
)

// String returns the config word of the fallback.
func (w WhenFull) String() string {
	if w == Requests {
		return "requests"
	}
	return "seconds"
}

// Admission says how far health lets an endpoint be used. The order is that of health.Admission: the owner of the
// snapshot converts by number.
const (
	Normal     uint8 = iota // a candidate
	Trial                   // a candidate for one request, preferred in a near-tie
	Avoid                   // only when no candidate is left
	LastResort              // only when nothing else exists
)

// Params are the settings and learned averages of one pool.
type Params struct {
	Policy   Policy
	Gates    Gates
	WhenFull WhenFull

	FullWaiting int     // waiting gate: full at this many waiting requests; <= 0 means 1
	ProjectedKV float64 // projected KV gate: full above this share; <= 0 means 0.95
	LongPrompt  int     // tokens from which on the waiting gate does not apply by default; <= 0 means 16384

	Coeff         Coefficients // step-time coefficients of the model on its hardware
	StallShare    float64      // share of the new prefill that each decoding request suffers; 0.3
	BytesPerToken float64      // learned; turns prompt bytes into tokens; 4 until known
	MeanOutput    float64      // learned mean of output tokens; 200 until known
	Residence     float64      // learned mean seconds from pick to end; what a refused client is told to wait
	Scale         float64      // learned: real seconds per second that Coeff predicts; 0 means 1

	Without Terms // cost terms left out, to see what each is good for; no configuration sets it
}

// Coefficients describe one engine step in seconds:
// A + B*decoding + C*context tokens of the decoding + P*prefill tokens + Q*sum(new*(context + new/2)).
type Coefficients struct {
	A, B, C, P, Q float64
}

// Steps returns what a pick takes an engine's steps to be: the coefficients that were given, or the default, times the factor that was
// learnt for the pool, which is scale.
func (p Params) Steps() (steps Coefficients, scale float64) {
	p = p.withDefaults()
	c, k := p.Coeff, p.Scale
	return Coefficients{A: k * c.A, B: k * c.B, C: k * c.C, P: k * c.P, Q: k * c.Q}, k
}

// Load is what is in flight on one endpoint by the books of this gateway, which hold what its peers told it too.
type Load struct {
	Requests       int32 // in flight
	Decoding       int32 // of those, first token seen
	PromptTokens   int64 // whole prompts of all in flight
	NewTokens      int64 // of those, not expected in the cache at the pick
	UncachedTokens int64 // NewTokens of the requests whose first token was not seen
	ContextTokens  int64 // prompt and output tokens of the decoding requests
	OutputTokens   int64 // streamed so far by all in flight
	GrowthTokens   int64 // expected of each answer and not streamed yet, summed
	UnseenTokens   int64 // of those, of requests whose first token was not seen: what they produced already is not known
}

// Endpoint is all that a pick knows of one endpoint. A zero Endpoint with Admission LastResort stands for an unused
// slot; slots that must never be picked are left out with the exclude bitmap.
type Endpoint struct {
	Admission uint8   // Normal, Trial, Avoid or LastResort
	Penalty   float64 // seconds added to the cost (an endpoint that asked for a pause)

	Known     bool    // a fresh report exists; false: load is taken as the pool's average or the own books
	Running   int32   // reported
	Waiting   int32   // reported
	KVUsage   float64 // reported share of KV blocks in use, [0,1]; negative or NaN: unknown
	BlockSize int32   // tokens per KV block; 0 unknown

	Blocks         int32 // usable KV blocks; 0 unknown
	MaxNumSeqs     int32 // 0 unknown: the gate does not apply
	MaxModelLen    int32 // 0 unknown
	CapacityTokens int64 // KV capacity in tokens; 0: Blocks*BlockSize, and when that is 0 too the KV gate does not apply
	Budget         int32 // prefill tokens per step; 0 means 2048

	Load                 // own books now
	AtReport       Load  // own books when the report was taken
	Peers          int32 // of Load.Requests, what other gateways sent; told in explanations only
	ForeignRunning int32 // reported minus own, when positive
	ForeignWaiting int32

	HeldTokens int64 // tokens of prompts that its cache is believed to hold; 0 unknown: as few as are in use

	Kappa float64 // observed / predicted time to first token, over that of the pool; 0 means 1
	Rho   float64 // share of time that booked work keeps the endpoint busy, [0,1)
}

// Snapshot is one pool at the moment of a pick.
type Snapshot struct {
	Params    Params
	Endpoints []Endpoint
	Regret    float64 // of the cached tokens evicted lately, the share asked for again, [0,1]
}

// Request is what a pick knows of one request.
type Request struct {
	PromptTokens int32 // estimate; 0 means 1
	MaxTokens    int32 // asked-for output limit; 0 unknown
	OutputTokens int32 // expected output, see Averages.Output; 0: Params.MeanOutput

	// Open asks for an endpoint that is not full: if every one is, the pick has Slot -1 and ReasonAllFull. An endpoint with
	// nothing to do is never full for such a request, or one that is too large for every memory would wait for ever.
	Open bool
}

// Reason says what decided a pick.
type Reason uint8

// Reasons. ReasonNone means that no endpoint could be picked.
const (
	ReasonNone Reason = iota
	ReasonPrefix
	ReasonLoad
	ReasonAllFull
	ReasonOnlyOne
)

// String returns the metric label of the reason.
func (r Reason) String() string {
	switch r {
	case ReasonPrefix:
		return "prefix"
	case ReasonLoad:
		return "load"
	case ReasonAllFull:
		return "all_full"
	case ReasonOnlyOne:
		return "only_one"
	}
	return "none"
}

// Pick is the result of Choose.
type Pick struct {
	Slot      int     // -1: none
	Reason    Reason  //
	Cost      float64 // seconds
	HitTokens int32   // leading prompt tokens expected in the endpoint's cache
	Predicted float64 // seconds to first token by Params.Coeff, before Scale and Kappa; feed Learner.ObserveTTFT
	Work      float64 // seconds of prefill by Params.Coeff that the pick adds; feed Learner.BookWork

	Full [NumGates]int32 // endpoints that each gate excluded
}
