package telemetry

import "slices"

// Kind is the type of a metric.
type Kind string

// Kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Other is the label value that everything unknown or beyond a bound folds into.
const Other = "other"

// Definition is one metric: a row of the table that registry, documentation and tests share.
type Definition struct {
	Name    string // pointsman_<noun>_<unit>[_total]
	Kind    Kind
	Help    string   // one sentence, units and source included
	Labels  []string // in the order in which values are given
	Buckets []float64
}

// Names of the metrics, in the order of the table.
const (
	nameRequests       = "pointsman_requests_total"
	nameRequestSeconds = "pointsman_request_seconds"
	nameTTFT           = "pointsman_time_to_first_token_seconds"
	namePromptTokens   = "pointsman_prompt_tokens_total"
	nameGenerated      = "pointsman_generated_tokens_total"
	namePredictedHit   = "pointsman_prefix_predicted_hit_tokens_total"
	nameActualHit      = "pointsman_prefix_actual_hit_tokens_total"
	nameActualPrompt   = "pointsman_prefix_actual_prompt_tokens_total"
	namePicks          = "pointsman_picks_total"
	namePickSeconds    = "pointsman_pick_seconds"
	nameAttempts       = "pointsman_attempts_total"
	nameRetries        = "pointsman_client_retries_total"
	nameWasted         = "pointsman_wasted_tokens_total"
	nameQueueSeconds   = "pointsman_queue_wait_seconds"
	nameShed           = "pointsman_shed_requests_total"
	nameWindow         = "pointsman_window_requests_total"
	nameEstimate       = "pointsman_prompt_estimate_ratio"
	nameLostRecords    = "pointsman_lost_access_records_total"

	nameInFlight      = "pointsman_in_flight_requests"
	nameState         = "pointsman_endpoint_state"
	nameReportAge     = "pointsman_endpoint_report_age_seconds"
	nameRunning       = "pointsman_endpoint_running"
	nameWaiting       = "pointsman_endpoint_waiting"
	nameKV            = "pointsman_endpoint_kv_usage_ratio"
	nameProjectedKV   = "pointsman_endpoint_projected_kv_ratio"
	nameForeign       = "pointsman_endpoint_foreign_requests"
	nameHitRatio      = "pointsman_endpoint_hit_ratio"
	nameHeld          = "pointsman_endpoint_held_prefix_tokens"
	nameFullEndpoints = "pointsman_full_endpoints"
	nameQueued        = "pointsman_queued_requests"
	nameHeldRequests  = "pointsman_held_requests"
	nameReportsStale  = "pointsman_pool_reports_stale"
	nameSourceBroken  = "pointsman_pool_source_broken"
	nameContradiction = "pointsman_pool_policy_contradiction"
	namePeerInFlight  = "pointsman_peer_in_flight_requests"
	nameDraining      = "pointsman_draining_requests"
	nameBuildInfo     = "pointsman_build_info"
)

// Definitions returns the table of all metrics of the gateway itself. The Go runtime's and the process's
// own series (go_*, process_*) come on top.
func Definitions() []Definition {
	return slices.Concat(requestDefinitions(), endpointDefinitions(), peerDefinitions())
}

func requestDefinitions() []Definition {
	mp := []string{"model", "pool"}
	return []Definition{
		{Name: nameRequests, Kind: Counter, Labels: []string{"model", "pool", "outcome"},
			Help: "Requests that ended, by outcome: exactly one per request."},
		{Name: nameRequestSeconds, Kind: Histogram, Labels: mp, Buckets: requestBuckets(),
			Help: "Time from a request's arrival to the end of its answer, whatever the outcome."},
		{Name: nameTTFT, Kind: Histogram, Labels: mp, Buckets: ttftBuckets(),
			Help: "Time from a request's arrival to the first token of its answer; requests without a token are not counted."},
		{Name: namePromptTokens, Kind: Counter, Labels: mp,
			Help: "Prompt tokens of ended requests, as the endpoint reported them, else as estimated for the pick."},
		{Name: nameGenerated, Kind: Counter, Labels: mp,
			Help: "Tokens generated for ended requests, as the endpoint reported them, else the content frames seen."},
		{Name: namePredictedHit, Kind: Counter, Labels: mp,
			Help: "Prompt tokens that the gateway expected to be cached at the endpoint it picked."},
		{Name: nameActualHit, Kind: Counter, Labels: mp,
			Help: "Prompt tokens that the endpoint reported as cached; endpoints that do not report them add nothing."},
		{Name: nameActualPrompt, Kind: Counter, Labels: mp,
			Help: "Prompt tokens of the requests whose endpoint reported cached tokens: the denominator of the actual hit rate."},
		{Name: namePicks, Kind: Counter, Labels: []string{"pool", "reason"},
			Help: "Picks by reason: prefix (a held prefix decided), load, all_full (every endpoint was full), only_one."},
		{Name: namePickSeconds, Kind: Histogram, Labels: []string{"pool"}, Buckets: pickBuckets(),
			Help: "Time spent deciding on an endpoint."},
		{Name: nameAttempts, Kind: Counter, Labels: []string{"pool", "endpoint", "outcome"},
			Help: "Attempts to serve a request at an endpoint, by outcome; more than one per request when a connection could not be made."},
		{Name: nameRetries, Kind: Counter, Labels: []string{"model", "pool", "reached"},
			Help: "Requests that their client marked as a retry (x-stainless-retry-count), by how far the earlier attempt had got here."},
		{Name: nameWasted, Kind: Counter, Labels: []string{"model", "pool", "reason"},
			Help: "Tokens computed for nothing, at least: generated for answers that did not reach their end, by the outcome, and uncached prompt tokens of clients' retries whose earlier attempt had been at an endpoint (repeated_prefill)."},
		{Name: nameQueueSeconds, Kind: Histogram, Labels: []string{"pool"}, Buckets: ttftBuckets(),
			Help: "Time that requests waited in the gateway for an endpoint, however that ended; those that found one at once are not counted."},
		{Name: nameWindow, Kind: Counter, Labels: []string{"model", "pool", "how"},
			Help: "Requests of models with several windows that did not simply go to the first pool, by how they ended in theirs: direct (certainly too long for a smaller one), resent (refused by a smaller one), refused (by all), overflow (the smaller one was full), no_endpoint (it had none)."},
		{Name: nameEstimate, Kind: Histogram, Labels: []string{"pool"}, Buckets: ratioBuckets(),
			Help: "Prompt tokens as estimated for the choice of a window, by those that the engine counted; models with one window are not estimated."},
		{Name: nameLostRecords, Kind: Counter,
			Help: "Access records that could not be written: a full disk, a closed pipe. The requests themselves are not affected."},
	}
}

func endpointDefinitions() []Definition {
	pe := []string{"pool", "endpoint"}
	return []Definition{
		{Name: nameInFlight, Kind: Gauge, Labels: pe,
			Help: "Requests that this gateway sent to the endpoint and that have not ended."},
		{Name: namePeerInFlight, Kind: Gauge, Labels: pe,
			Help: "Requests that other replicas of the gateway have in flight at the endpoint, by what they say."},
		{Name: nameState, Kind: Gauge, Labels: []string{"pool", "endpoint", "state"},
			Help: "1 for the state that the endpoint is in, 0 for the others."},
		{Name: nameReportAge, Kind: Gauge, Labels: pe,
			Help: "Age of the endpoint's last good report; absent before the first one."},
		{Name: nameRunning, Kind: Gauge, Labels: pe,
			Help: "Requests that the endpoint reports as running; absent while unknown."},
		{Name: nameWaiting, Kind: Gauge, Labels: pe,
			Help: "Requests that the endpoint reports as waiting; absent while unknown."},
		{Name: nameKV, Kind: Gauge, Labels: pe,
			Help: "Share of KV cache blocks that the endpoint reports in use, 0 to 1; absent while unknown."},
		{Name: nameProjectedKV, Kind: Gauge, Labels: pe,
			Help: "The same forecast: the report, plus what was sent since, plus the growth that decoding will bring; can pass 1."},
		{Name: nameForeign, Kind: Gauge, Labels: pe,
			Help: "Requests at the endpoint that came neither through this gateway nor through its peers: reported less those in flight, never negative."},
		{Name: nameHitRatio, Kind: Gauge, Labels: []string{"pool", "endpoint", "kind"},
			Help: "Prefix cache hit ratio of the endpoint since its start, 0 to 1: kind engine is hits by queries, computed is 1 - computed by prompt tokens."},
		{Name: nameHeld, Kind: Gauge, Labels: pe,
			Help: "Prompt tokens of prefixes that the gateway believes the endpoint holds."},
		{Name: nameFullEndpoints, Kind: Gauge, Labels: []string{"pool", "gate"},
			Help: "Endpoints that a gate makes full at this moment."},
		{Name: nameQueued, Kind: Gauge, Labels: []string{"pool"},
			Help: "Requests that wait in the gateway for an endpoint, those that are held included: what an autoscaler goes by."},
		{Name: nameHeldRequests, Kind: Gauge, Labels: []string{"pool"},
			Help: "Of these, requests held because no endpoint of the pool is usable."},
		{Name: nameShed, Kind: Counter, Labels: []string{"pool", "reason"},
			Help: "Requests refused with 429 for want of room: queue_full (too many waited already) or queue_timeout (waited for too long)."},
		{Name: nameReportsStale, Kind: Gauge, Labels: []string{"pool"},
			Help: "1 while every report of the pool is stale, so that the gateway's own ledger alone decides."},
		{Name: nameSourceBroken, Kind: Gauge, Labels: []string{"pool"},
			Help: "1 while the pool's source of endpoints cannot be read, so that the last good set is served on."},
		{Name: nameContradiction, Kind: Gauge, Labels: []string{"pool"},
			Help: "1 while the configured policy contradicts what the endpoints say of their prefix caching."},
		{Name: nameDraining, Kind: Gauge,
			Help: "Requests that a drain still waits for; 0 while the gateway is not ending."},
		{Name: nameBuildInfo, Kind: Gauge, Labels: []string{"version", "revision", "go_version"},
			Help: "Always 1; the labels say which build this is."},
	}
}

// requestBuckets reach from a cache-warm embedding to the longest limit that is in use (an hour).
func requestBuckets() []float64 {
	return []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600}
}

// ttftBuckets are finer than a factor of 2 where users notice (0.1 to 2 s) and reach to a prompt that
// queued behind long documents.
func ttftBuckets() []float64 {
	return []float64{.005, .01, .02, .035, .05, .075, .1, .15, .2, .3, .4, .6, .8, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300, 600}
}

// ratioBuckets are finest where an estimate should be, around 1.
func ratioBuckets() []float64 {
	return []float64{.25, .5, .7, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4}
}

// pickBuckets: a pick takes microseconds; more than a millisecond means contention or a starved CPU.
func pickBuckets() []float64 {
	return []float64{1e-6, 2e-6, 3e-6, 5e-6, 7.5e-6, 1e-5, 1.5e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2}
}
