// Package telemetry says what the gateway did: Prometheus metrics on a registry of its own, one access
// record per request, and a short traffic summary for the dashboard.
//
// It does not decide anything, does not keep per-request state and never sees prompts, answers or keys: a
// [Record] has no field that could hold one. Every metric is one row of the table in [Definitions]; the
// registry, the generated page docs/metrics.md and the lint test all read that table.
//
// Goroutines: everything here may be called from any goroutine. Nothing here starts one. Counting is
// lock-free on the request path (handles are cached per label set); the gauges of pools and endpoints are
// computed when the page is scraped, from the function given to [Metrics.CollectPools].
//
// Labels are bounded: model names that no pool serves fold into [Other], as does every label set beyond a
// fixed number; series of endpoints that left are dropped some minutes later.
package telemetry
