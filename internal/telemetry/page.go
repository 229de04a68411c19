package telemetry

import (
	"fmt"
	"strconv"
	"strings"

	"pointsman.dev/pointsman/internal/pool"
)

// Markdown renders the page docs/metrics.md from the table.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Metrics

On the admin listener at ` + "`/metrics`" + `, in the Prometheus text format (OpenMetrics by negotiation). This page is generated from
the table that the registry is built from; ` + "`go test ./internal/telemetry -update`" + ` writes it anew.

Labels are bounded: a model name that no pool serves counts as ` + "`other`" + `, and the series of an endpoint that left its pool
disappear some minutes later. A value that is not known is absent, never zero.

`)
	section(&b, "Requests", requestDefinitions())
	section(&b, "Pools and endpoints", endpointDefinitions())
	section(&b, "Replicas", peerDefinitions())
	b.WriteString("The usual `go_*` and `process_*` series of the Go runtime and the process, and `promhttp_*` of the page itself, come on top.\n\n")
	b.WriteString("## Label values\n\n| label | values |\n|---|---|\n")
	row(&b, "outcome", code(Outcomes()...))
	row(&b, "reason of picks", code("prefix", "load", "all_full", "only_one"))
	row(&b, "reason of wasted tokens", code(Wastes()...))
	row(&b, "reason of shed requests", code(pool.QueueFull, pool.QueueTimeout))
	row(&b, "reached", code(Reaches()...))
	row(&b, "state", code(states()...))
	row(&b, "gate", code(gates()...))
	row(&b, "kind", code("engine", "computed"))
	row(&b, "state of peers", code(PeerStates()...))
	row(&b, "result", code(PeerResults()...))
	row(&b, "direction", code("sent", "received"))
	b.WriteString(`
An ` + "`outcome`" + ` says how the request ended for the client: ` + "`ok`" + ` the answer reached its end; ` + "`client_error`" + ` a 4xx, from here or the
engine; ` + "`client_cancelled`" + ` the client went away first; ` + "`upstream_error`" + ` the endpoint failed before the answer began; ` + "`cut`" + ` it broke
off after that; ` + "`timeout`" + ` the time limit ended it; ` + "`shed`" + ` refused for lack of room; ` + "`too_long`" + ` the prompt does not fit the model's
window; ` + "`no_endpoint`" + ` there was nowhere to send it.

` + "`reached`" + ` says how far the earlier attempt of a request had got that its client sends again: ` + "`unknown`" + ` it is not remembered, ` + "`nothing`" + ` no
endpoint took it, ` + "`endpoint`" + ` it was sent to one, ` + "`tokens`" + ` tokens were generated for it. The earlier attempt is known by prompt, model and
length; the last 4,096 requests without an answer are remembered.

## Histogram buckets

| metric | upper bounds, seconds |
|---|---|
`)
	for _, d := range Definitions() {
		if d.Kind == Histogram {
			row(&b, "`"+d.Name+"`", bounds(d.Buckets))
		}
	}
	b.WriteString(queries)
	return b.String()
}

const queries = `
## Useful queries

` + "```" + `promql
# share of requests that failed, by model
sum by (model) (rate(pointsman_requests_total{outcome=~"upstream_error|cut|timeout|no_endpoint|shed"}[5m]))
  / sum by (model) (rate(pointsman_requests_total[5m]))

# 95th percentile of the time to first token
histogram_quantile(0.95, sum by (model, le) (rate(pointsman_time_to_first_token_seconds_bucket[5m])))

# actual hit rate, of the requests whose endpoint reports cached tokens
sum(rate(pointsman_prefix_actual_hit_tokens_total[5m])) / sum(rate(pointsman_prefix_actual_prompt_tokens_total[5m]))

# load that bypasses the gateway
max_over_time(pointsman_endpoint_foreign_requests[10m]) > 0

# share of the generated tokens that nobody got, by why
sum by (reason) (rate(pointsman_wasted_tokens_total{reason!="repeated_prefill"}[5m])) / ignoring(reason) group_left sum(rate(pointsman_generated_tokens_total[5m]))

# endpoints that are not in use
pointsman_endpoint_state{state!="ready"} == 1

# an autoscaler's signal: requests that no endpoint has room for, or that wait for the first endpoint of a pool
sum by (pool) (pointsman_queued_requests)

# picks that found every endpoint full: the pool is too small
sum by (pool) (rate(pointsman_picks_total{reason="all_full"}[5m])) / sum by (pool) (rate(pointsman_picks_total[5m]))
` + "```" + `
`

func section(b *strings.Builder, title string, list []Definition) {
	fmt.Fprintf(b, "## %s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", title)
	for _, d := range list {
		row(b, "`"+d.Name+"`", string(d.Kind), code(d.Labels...), d.Help)
	}
	b.WriteByte('\n')
}

func row(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func code(words ...string) string {
	return "`" + strings.Join(words, "`, `") + "`"
}

func bounds(list []float64) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strings.Join(words, " ")
}
