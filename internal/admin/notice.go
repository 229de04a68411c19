package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Levels of a Notice.
const (
	LevelError = "error" // users are affected now
	LevelWarn  = "warn"  // worse than it should be
	LevelInfo  = "info"  // good to know
)

// Notice is something that an operator should know, with what to do about it.
type Notice struct {
	Level     string   `json:"level"`
	Kind      string   `json:"kind"` // stable machine word
	Pool      string   `json:"pool"`
	Endpoints []string `json:"endpoints,omitempty"`
	Title     string   `json:"title"`
	Detail    string   `json:"detail,omitempty"`
	Todo      string   `json:"todo,omitempty"`
}

// Thresholds from which on something is worth a notice.
const (
	slownessNotice    = 3.0  // times slower than the model of the endpoint predicts
	failedNotice      = 0.05 // share of the last minute's requests
	allFullNotice     = 0.10 // share of the last minute's picks
	hitGapNotice      = 0.25 // predicted less actual hit ratio
	descriptorsNotice = 0.9  // share of the file descriptors that this process may have
	minRequests       = 20   // a share of less than this says nothing
)

// notices says what is wrong, the worst first; unplaced is the number of the last minute's requests that got to no pool.
func notices(pools []PoolView, peers []telemetry.Peer, unplaced int64) []Notice {
	out := peerNotices(peers)
	if unplaced >= minRequests {
		out = append(out, Notice{Level: LevelWarn, Kind: "unplaced", Title: fmt.Sprintf("%d requests of the last minute reached no pool", unplaced),
			Detail: "They named no model that an endpoint lists, used a path that is not forwarded, or were malformed.",
			Todo:   "The access log's error_reason says which."})
	}
	for i := range pools {
		p := &pools[i]
		out = append(out, poolNotices(p)...)
		out = append(out, endpointNotices(&p.Status)...)
	}
	rank := func(n Notice) int { return slices.Index([]string{LevelError, LevelWarn, LevelInfo}, n.Level) }
	slices.SortStableFunc(out, func(a, b Notice) int { return rank(a) - rank(b) })
	return out
}

// ownNotices speaks of what the gateway itself lacks. Without descriptors it reaches no endpoint, which then looks like their fault.
func (s *Server) ownNotices() []Notice {
	if s.cfg.Descriptors == nil {
		return []Notice{}
	}
	open, most := s.cfg.Descriptors()
	if most <= 0 || float64(open) < descriptorsNotice*float64(most) {
		return []Notice{}
	}
	return []Notice{{Level: LevelError, Kind: "descriptors", Title: fmt.Sprintf("The gateway has %d of %d file descriptors open", open, most),
		Detail: "Each open request takes two. When none is left new clients wait, and requests get 503 although endpoints have room.",
		Todo:   "Raise the limit (ulimit -n, LimitNOFILE of the unit, the container runtime's), or add replicas."}}
}

// peerNotices speaks of replicas that do not learn of this one's picks.
func peerNotices(peers []telemetry.Peer) []Notice {
	lost := slices.DeleteFunc(slices.Clone(peers), func(p telemetry.Peer) bool { return p.State == telemetry.PeerConnected })
	if len(lost) == 0 {
		return []Notice{}
	}
	return []Notice{{Level: LevelWarn, Kind: "peers", Title: fmt.Sprintf("%d of %d other replicas do not learn of the picks made here", len(lost), len(peers)),
		Detail: lost[0].Address + ": " + cmp.Or(lost[0].Error, lost[0].State) + ".",
		Todo:   "Check that the replicas reach each other on the port of peers.listen, with certificates of the same authority."}}
}

func poolNotices(p *PoolView) []Notice {
	var out []Notice
	add := func(level, kind, title, detail, todo string) {
		out = append(out, Notice{Level: level, Kind: kind, Pool: p.Name, Title: title, Detail: detail, Todo: todo})
	}
	switch {
	case !p.Ready && p.Queue.Holds:
		add(LevelInfo, "holding", "No endpoint is usable: requests are held", fmt.Sprintf("%d wait for the first endpoint.", p.Queue.Held),
			"Nothing, if the pool is scaled to zero and something starts an endpoint by pointsman_queued_requests.")
	case len(p.Endpoints) == 0:
		add(LevelError, "no_endpoints", "The pool has no endpoints", "Requests for its models are refused."+sourceError(p.Source),
			"Check endpoints, file, dns or kubernetes of this pool in the configuration.")
	case !p.Ready:
		add(LevelError, "not_ready", "No endpoint is known to be usable", "Requests are still tried: an endpoint may be better than its reports.",
			"Check that the model servers run and that their address can be reached from here.")
	case p.AllStale:
		add(LevelWarn, "all_stale", "Every report is stale", "The gateway's own ledger alone decides; load from elsewhere is invisible."+reportErrors(p.Endpoints),
			"Check that /metrics of the endpoints answers from here (NetworkPolicy, API key, overload).")
	}
	if p.Source != "" && len(p.Endpoints) > 0 {
		add(LevelWarn, "source_broken", "The endpoints may be out of date", "Their source cannot be read; the last good set is served on."+sourceError(p.Source),
			"Check the API server and the gateway's rights there, the name server, or the file.")
	}
	out = append(out, policyNotices(p)...)
	t := &p.Traffic
	if t.Requests >= minRequests && float64(t.Failed) >= failedNotice*float64(t.Requests) {
		add(LevelError, "failing", fmt.Sprintf("%d of %d requests failed in the last minute", t.Failed, t.Requests), "",
			"The access log's outcome, error_reason and cause say why; pointsman_attempts_total says where.")
	}
	if n := t.Reasons["all_full"]; n >= minRequests && float64(n) >= allFullNotice*float64(sum(t.Reasons)) {
		add(LevelWarn, "all_full", "Too many endpoints are full", fmt.Sprintf("%d of the last minute's %d picks went to a full endpoint, because every one was full.", n, sum(t.Reasons)),
			"Add replicas, or lower the offered load.")
	}
	out = append(out, queueNotices(p)...)
	if gap := orNaN(t.PredictedHit) - orNaN(t.ActualHit); t.Requests >= minRequests && gap > hitGapNotice {
		add(LevelWarn, "hit_gap", "Fewer prefix hits than predicted",
			fmt.Sprintf("Predicted %.0f %%, reported %.0f %%.", *t.PredictedHit*100, *t.ActualHit*100),
			"Traffic that bypasses the gateway, or a cache_salt added behind it, may fill the caches.")
	}
	return out
}

// sourceError is why the source of endpoints is broken, as the end of a detail.
func sourceError(why string) string {
	if why == "" {
		return ""
	}
	return " Its source says: " + why + "."
}

// queueNotices speaks of a queue that grows: with one, nothing else shows that the endpoints cannot keep up.
func queueNotices(p *PoolView) []Notice {
	q := &p.Queue
	if q.Max <= 0 || q.Waiting*2 < q.Max || q.Held > 0 {
		return nil
	}
	n := Notice{Level: LevelWarn, Kind: "queue", Pool: p.Name, Title: fmt.Sprintf("The queue fills up: %d of %d wait", q.Waiting, q.Max),
		Detail: fmt.Sprintf("Every endpoint that could take them is full; the first has waited for %.1f s.", q.Oldest), Todo: "Add replicas, or lower the offered load."}
	if q.Waiting >= q.Max {
		n.Level, n.Title = LevelError, fmt.Sprintf("The queue is full: %d wait", q.Waiting)
		n.Detail += " Further requests get 429."
	}
	return []Notice{n}
}

// staleCause is why a report is stale. A page that answers and stands still has no error.
func staleCause(ep *pool.EndpointStatus) string {
	if ep.ReportError == "" && ep.ReportAge != nil && *ep.ReportAge < 1 {
		return "the page answers, but its numbers stand still while requests move"
	}
	return ep.ReportError
}

// reportErrors are the last errors of reports, as the end of a detail.
func reportErrors(list []pool.EndpointStatus) string {
	var errs []string
	for i := range list {
		errs = appendNew(errs, list[i].ReportError)
	}
	return lastErrors(errs)
}

func appendNew(errs []string, e string) []string {
	if e == "" || slices.Contains(errs, e) {
		return errs
	}
	return append(errs, e)
}

// lastErrors is the end of a detail: one wrong address among servers that are down must not hide behind them, nor a
// hundred servers that are down fill the page.
func lastErrors(errs []string) string {
	const most = 3
	switch n := len(errs); {
	case n == 0:
		return ""
	case n == 1:
		return " Last error: " + errs[0]
	case n > most:
		return fmt.Sprintf(" Last errors: %s; %d more", strings.Join(errs[:most], "; "), n-most)
	}
	return " Last errors: " + strings.Join(errs, "; ")
}

// policyNotices passes on what the pool itself warns of, with the remedy for a policy that does not fit.
func policyNotices(p *PoolView) []Notice {
	var out []Notice
	for _, w := range p.Warnings {
		n := Notice{Level: LevelWarn, Kind: "pool_warning", Pool: p.Name, Title: sentence(w)}
		if strings.Contains(w, "policy") {
			n.Kind = "policy_contradiction"
			n.Todo = "Set policy: auto, or change --enable-prefix-caching at the model servers."
		}
		out = append(out, n)
	}
	return out
}

// finding groups endpoints that have the same problem into one notice.
type finding struct {
	level, kind  string
	one, many    string // title for one endpoint and for several (with %d)
	detail, todo string
	is           func(ep *pool.EndpointStatus) bool
	last         func(ep *pool.EndpointStatus) string // the error that the detail ends with; nil: none
}

// unreached says that nothing ever answered at the address, though it was asked.
func unreached(ep *pool.EndpointStatus) bool { return !ep.Heard && !ep.Leaving && ep.Cause != "" }

// unlisted says that an endpoint in use has shown no model list.
func unlisted(ep *pool.EndpointStatus) bool {
	return ep.State == "ready" && !ep.Leaving && len(ep.Models) == 0
}

// cause is what spoke against an endpoint last.
func cause(ep *pool.EndpointStatus) string { return cmp.Or(ep.Cause, ep.ReportError) }

func modelsError(ep *pool.EndpointStatus) string { return ep.ModelsError }

func findings() []finding {
	state := func(s string) func(*pool.EndpointStatus) bool {
		return func(ep *pool.EndpointStatus) bool { return ep.State == s && !ep.Leaving && !unreached(ep) }
	}
	return []finding{
		{LevelWarn, "unreached", "An endpoint was never reached", "%d endpoints were never reached",
			"Nothing has answered there yet.", "Check its name, port and scheme in the configuration, and that the model server runs.", unreached, cause},
		{LevelWarn, "no_model_server", "What answers is no model server", "What answers at %d endpoints is no model server",
			"It has none of /metrics, /health and /v1/models, so requests go there only when nothing else is left.",
			"Check its host and port in the configuration.",
			func(ep *pool.EndpointStatus) bool { return ep.NoModelServer && ep.State == "warming" && !ep.Leaving }, cause},
		{LevelWarn, "ejected", "An endpoint is ejected", "%d endpoints are ejected",
			"Requests failed there. Probes and single trial requests find out when it can be used again.", "Look at the model server's log; the access log's cause says how it failed.", state("ejected"), cause},
		{LevelWarn, "gone", "An endpoint does not answer", "%d endpoints do not answer",
			"It cannot be reached any more, or the server said that it is shutting down.", "Check its address and that it runs; if it is meant to be away, remove it from the configuration.", state("gone"), cause},
		{LevelInfo, "draining", "An endpoint is draining", "%d endpoints are draining",
			"New work is refused there, what runs is finished.", "", state("draining"), nil},
		{LevelInfo, "asleep", "An endpoint is asleep", "%d endpoints are asleep",
			"The engine has released the weights; requests would hang, so none are sent.", "Wake it at its own /wake_up.", state("asleep"), nil},
		{LevelWarn, "stale_report", "An endpoint's report is stale", "%d endpoints have stale reports",
			"Without a fresh report an endpoint counts as average, never as a favourite.", "Check that its /metrics answers from here.",
			func(ep *pool.EndpointStatus) bool {
				return ep.ReportStale && !ep.NoModelServer && (ep.State == "ready" || ep.State == "warming")
			}, staleCause},
		{LevelWarn, "no_models", "An endpoint lists no models", "%d endpoints list no models",
			"Its /v1/models does not answer as a model server's does, so requests for any model may be tried there.",
			"Check its port in the configuration, and that its /v1/models answers from here.",
			func(ep *pool.EndpointStatus) bool { return unlisted(ep) && !ep.WantsKey }, modelsError},
		{LevelWarn, "wants_key", "An endpoint wants a key to list its models", "%d endpoints want a key to list their models",
			"The gateway shows none of its models, and requests for any model may be tried there.",
			"Set api_key_file for the pool: a file with the key that the model server was started with (--api-key).",
			func(ep *pool.EndpointStatus) bool { return unlisted(ep) && ep.WantsKey }, modelsError},
		{LevelWarn, "slow", "An endpoint is slower than its load explains", "%d endpoints are slower than their load explains",
			"Answers start several times later than predicted, so fewer requests are sent there.", "Check clocks, throttling and neighbours of that machine.",
			func(ep *pool.EndpointStatus) bool { return ep.State == "ready" && ep.Slowness >= slownessNotice }, nil},
		{LevelInfo, "foreign", "Load bypasses the gateway", "Load bypasses the gateway at %d endpoints",
			"More requests are reported than were sent from here; they are counted when picking.", "Find out who calls it directly: they get no prefix affinity. Other replicas of the gateway count as foreign too.",
			func(ep *pool.EndpointStatus) bool { return ep.Foreign > 0 }, nil},
	}
}

func endpointNotices(p *pool.Status) []Notice {
	var out []Notice
	if p.AllStale {
		p = withoutStale(p) // said once for the pool
	}
	for _, f := range findings() {
		var errs []string
		n := Notice{Level: f.level, Kind: f.kind, Pool: p.Name, Title: f.one, Detail: f.detail, Todo: f.todo}
		for i := range p.Endpoints {
			ep := &p.Endpoints[i]
			if !f.is(ep) {
				continue
			}
			n.Endpoints = append(n.Endpoints, ep.Name)
			if f.last != nil {
				errs = appendNew(errs, f.last(ep))
			}
		}
		n.Detail += lastErrors(errs)
		if len(n.Endpoints) > 1 {
			n.Title = fmt.Sprintf(f.many, len(n.Endpoints))
		}
		if len(n.Endpoints) > 0 {
			out = append(out, n)
		}
	}
	return out
}

func withoutStale(p *pool.Status) *pool.Status {
	c := *p
	c.Endpoints = slices.Clone(p.Endpoints)
	for i := range c.Endpoints {
		c.Endpoints[i].ReportStale = false
	}
	return &c
}

func sum(m map[string]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// sentence starts a warning with a capital.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
