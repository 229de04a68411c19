// Package config reads Pointsman's configuration file and its command line into one immutable value, and refuses
// what is not meant.
//
// It is for: the meaning of every key (the field comments of Config are the manual), the defaults, strict decoding
// with positions, and the rules that hold between keys. It is the only package that imports a YAML library.
//
// It does not: open listeners, resolve names, contact endpoints, or watch files. A changed file is loaded again into
// a new Config by whoever noticed the change.
//
// A Config is never modified after Load, Parse or FromFlags returned it, so that any number of goroutines may read it.
// Every function here may be called from any goroutine; the only I/O is reading the configuration file itself and the
// key files that it names.
package config

import (
	"log/slog"
	"time"
)

// Config is the whole configuration of a gateway. Durations are what they say, sizes are bytes, addresses are
// host:port. The zero value is not usable: start from Default, Load, Parse or FromFlags.
type Config struct {
	// Listen (`listen`, default 0.0.0.0:8080) is the address of the API that clients use. An empty host (":8080")
	// means every interface; port 0 takes a free one and the log says which. Needs a restart to change.
	Listen string

	// Admin (`admin`, default 127.0.0.1:9090) is the address of /healthz, /readyz, /metrics, the dashboard, explain
	// and the profiler. It asks for no password, therefore its default is the loopback interface: to let a kubelet
	// or Prometheus reach it, open it (0.0.0.0:9090) and guard it with a network policy. Must not be the same
	// socket as Listen. Needs a restart to change.
	Admin string

	// Limit (`limit`, default 60m, 100ms to 168h) is the one time limit of a request, from its first byte to the
	// last byte of the answer. A proxy in front with a shorter limit ends long answers before this one does. FirstByte,
	// Idle and Drain follow from it unless they are set.
	Limit time.Duration

	// FirstByte (`first_byte`, default Limit, 100ms to Limit) is how long a streamed answer may take, from the request's
	// first byte, until its first event. Answers in one piece may be silent for the whole Limit.
	FirstByte time.Duration

	// Idle (`idle`, default Limit, 100ms to Limit) is the longest silence between two bytes of a stream.
	Idle time.Duration

	// Drain (`drain`, default Limit, 0 to 168h) is how long requests in flight may go on after SIGTERM, once DrainDelay
	// has passed. What is left then is cut, streams with an error event.
	Drain time.Duration

	// DrainDelay (`drain_delay`, default 5s, 0 to 10m) is how long the gateway still accepts requests after SIGTERM, while
	// whoever sends them learns from /readyz that it is going.
	DrainDelay time.Duration

	// KeepAlive (`keepalive`, default 15s, 0 or 1s to 10m) is the silence on a stream after which its client is sent a
	// comment line, so that idle timers in front do not fire; 0 sends none.
	KeepAlive time.Duration

	// MaxBody (`max_body`, default 64MiB, 1KiB to 4GiB) is the largest request body in bytes. A larger one is
	// refused with 413 before an endpoint is contacted.
	MaxBody int64

	// CutStream (`cut_stream`, default both) is how a stream that broke is ended towards the client.
	CutStream CutStream

	// CORS (`cors`, default none) lets pages of other origins use the API. nil: preflights go to the endpoint like any
	// request, and no header is added.
	CORS *CORS

	// TLS (`tls`, default none) makes the API speak TLS, with HTTP/2 by ALPN. nil: cleartext HTTP/1.1 and HTTP/2.
	TLS *TLS

	// ExtProc (`extproc`, default none) is the external processor, beside the API that Listen opens. nil: there is none.
	ExtProc *ExtProc

	// Peers (`peers`, default none) is the other replicas of this gateway. nil: it is alone, or its replicas are blind to each
	// other's picks.
	Peers *Peers

	// Kubernetes (`kubernetes`, default none) is how pools reach the API server from outside a cluster. nil: with the service
	// account of the pod that the gateway runs in.
	Kubernetes *KubernetesAccess

	// DebugHeaders (`debug_headers`, default false) adds x-pointsman-endpoint to responses, which tells clients the
	// address of the endpoint that answered.
	DebugHeaders bool

	// Log (`log`) is what the program writes to standard error. The format needs a restart to change.
	Log Log

	// Pools (`pools`) are the groups of endpoints, at least one, in the order of the file.
	Pools []Pool

	// Models (`models`, default none) are names of models beside those that the endpoints list themselves, or limits
	// a name to some pools.
	Models []Model

	// Warnings are what is allowed and probably not meant, sorted by position. They have the form of errors and do
	// not stop anything.
	Warnings []*Error

	// Path is the file that the configuration came from, "" when it came from flags alone.
	Path string
}

// CORS says which pages may use the API from a browser.
type CORS struct {
	// Origins (`cors.origins`, required, 1 to 256) are the origins, scheme://host[:port] in lower case without a default
	// port; "*" alone allows every page.
	Origins []string
}

// TLS names the certificate of the API. Both files are read again when they change; relative paths are treated as that of
// Pool.File.
type TLS struct {
	// CertFile (`tls.cert_file`, required) is the certificate in PEM, followed by its chain.
	CertFile string

	// KeyFile (`tls.key_file`, required) is the certificate's private key in PEM.
	KeyFile string
}

// Log says how the program logs. Records never hold prompts, answers or keys at any level.
type Log struct {
	// Format (`log.format`, text | json, default text) is the form of a record, one per line in both cases.
	Format LogFormat

	// Level (`log.level`, debug | info | warn | error, default info) is the least level written. The one access
	// record per request is written at info.
	Level slog.Level

	// PrefixHashes (`log.prefix_hashes`, default false) adds to access records which pieces of a prompt are equal to those of
	// others, as hashes under a key that ends with the process: what pointsman sim needs for a replay.
	PrefixHashes bool
}

// Pool is a group of endpoints that serve the same models with the same window. Exactly one of Endpoints, File and DNS
// is set.
type Pool struct {
	// Name (`name`, required, unique) is the pool's name in metrics, logs and model entries: lower case letters,
	// digits, '-', '_' and '.', at most 63 bytes, starting with a letter or digit.
	Name string

	// Endpoints (`endpoints`) are the endpoints' URLs in canonical form scheme://host:port, each once. Written
	// without a port, http means 80 and https 443.
	Endpoints []string

	// File (`file`) is a file that lists the endpoints (see Endpoints), read again within a second of a change. A
	// relative path in the configuration is relative to the configuration's own folder; here it is joined already.
	File string

	// DNS (`dns`) is a name and port, host:port, whose A and AAAA records are the endpoints, resolved every 5 s, e.g.
	// that of a headless Service. The endpoints are spoken to with plain http.
	DNS string

	// Kubernetes (`kubernetes`) is an object or a selector in a cluster that says which pods are the endpoints. They are
	// spoken to with plain http.
	Kubernetes *KubernetesSource

	// Policy (`policy`, default auto) is how an endpoint is picked.
	Policy Policy

	// Gates (`gates`, default "default") is which rules make an endpoint full.
	Gates Gates

	// Full (`full`) holds the thresholds of those rules.
	Full Full

	// WhenFull (`when_full`, default seconds) is what decides when every endpoint is full.
	WhenFull WhenFull

	// Queue (`queue`, default off) holds requests while every endpoint is full.
	Queue Queue

	// Hold (`hold`, default 0 = not at all, up to 168h) is how long a request waits for an endpoint while the pool has none
	// that is usable, so that a pool that was scaled to zero can start one.
	Hold time.Duration

	// Warm (`warm`, default none, at most 16) are synthetic requests that an endpoint gets, one after the other, before users'
	// requests, when its process is new. While it has them it is used only when there is no other.
	Warm []WarmRequest

	// Overflow (`overflow`, default false) lets the next pool of a model take requests while this one is full.
	Overflow bool

	// APIKeyFile (`api_key_file`, default none) is a file whose one line is sent to the endpoints as a bearer token,
	// also when /v1/models is read. The client's own Authorization header is then replaced. A relative path is
	// treated as that of File.
	APIKeyFile string

	// APIKey is the content of APIKeyFile, without surrounding white space. It is read when the configuration is
	// loaded, so a changed key is taken by a reload.
	APIKey Secret
}

// Full holds the thresholds at which an endpoint counts as full and is skipped while another one is not.
type Full struct {
	// Waiting (`full.waiting`, default 1, 1 to 10000): full when the endpoint reports at least so many waiting
	// requests.
	Waiting int

	// MaxNumSeqs (`full.max_num_seqs`, default auto = 0, 1 to 100000): full when so many requests run, per
	// data-parallel rank. auto takes what the model server tells, else what it was seen to run at most while
	// others waited; set it to the server's --max-num-seqs where you know it, since vLLM tells it in its
	// development mode only.
	MaxNumSeqs int

	// ProjectedKV (`full.projected_kv`, default 0.95, above 0 up to 1): full when this prompt would bring the share
	// of used KV blocks above it, counting what is on its way and what decoding will add.
	ProjectedKV float64

	// LongPrompt (`full.long_prompt`, default 16384 tokens, 1 to 100000000): a longer prompt is not stopped by the
	// waiting rule, because it is what makes others wait. Has no effect with gates strict.
	LongPrompt int
}

// Queue bounds how many requests wait for an endpoint that is not full, and for how long.
type Queue struct {
	// Max (`queue.max`, default 0 = no queue, up to 100000) is how many requests may wait. One more is refused with 429.
	Max int

	// Wait (`queue.wait`, default 0 = as long as the request's limit, up to 168h) is how long one may wait before it is
	// refused with 429.
	Wait time.Duration
}

// WarmRequest is synthetic requests of one shape: text of random words to /v1/completions.
type WarmRequest struct {
	// Prompt (`warm[].prompt`, required, 1 to 1000000) is about how many tokens the prompt has.
	Prompt int

	// Output (`warm[].output`, default 1, 1 to 10000) is how many tokens are asked for.
	Output int

	// AtOnce (`warm[].at_once`, default 1, 1 to 256) is how many such requests are sent side by side.
	AtOnce int
}

// Model is a model name that clients may use beside those that the endpoints list, or a rule for one that they list.
type Model struct {
	// Name (`name`, required, unique, up to 256 bytes) is the name that clients send.
	Name string

	// Serves (`serves`, default Name) is the name that the endpoints know; the request's model is rewritten to it.
	Serves string

	// Pools (`pools`, default nil = those whose endpoints list Serves, the smallest window first) are the pools that may
	// serve the name, in order of preference; Serves of each is resolved.
	Pools []ModelPool

	// Limit, FirstByte and Idle (`limit`, `first_byte`, `idle`, default those of the gateway) hold for requests of this
	// name; here they are resolved.
	Limit, FirstByte, Idle time.Duration
}

// ModelPool is one pool of a Model.
type ModelPool struct {
	// Pool is the name of an existing pool.
	Pool string
	// Serves is the name that this pool's endpoints know (`pools[].serves`, default the entry's), never empty.
	Serves string
}

// Policy is how an endpoint is picked among those that are not full.
type Policy uint8

const (
	// PolicyAuto follows the model server: prefix when its prefix caching is on, least_request when it is off.
	PolicyAuto Policy = iota
	// PolicyPrefix prefers the endpoint that makes the request cheapest in seconds, held prefixes included.
	PolicyPrefix
	// PolicyLeastRequest ignores prefixes.
	PolicyLeastRequest
)

// String returns the word of the file.
func (p Policy) String() string { return word(policies, int(p)) }

// Gates is which of the rules that make an endpoint full apply.
type Gates uint8

const (
	// GatesDefault applies every rule, save that the waiting rule does not stop a long prompt.
	GatesDefault Gates = iota
	// GatesStrict applies every rule to every prompt.
	GatesStrict
	// GatesOff applies none: the cost alone decides.
	GatesOff
)

// String returns the word of the file.
func (g Gates) String() string { return word(gates, int(g)) }

// WhenFull is how an endpoint is picked when every one is full.
type WhenFull uint8

const (
	// WhenFullSeconds picks the endpoint with the shortest expected wait for this request, in seconds.
	WhenFullSeconds WhenFull = iota
	// WhenFullRequests picks the endpoint with the fewest requests, the literal shortest queue.
	WhenFullRequests
)

// String returns the word of the file.
func (w WhenFull) String() string { return word(whenFulls, int(w)) }

// CutStream is how a stream that broke is ended towards the client.
type CutStream uint8

const (
	// CutBoth sends an error event and then ends the connection in a way that the protocol shows as abnormal.
	CutBoth CutStream = iota
	// CutErrorEvent sends an error event and ends cleanly.
	CutErrorEvent
	// CutAbort ends the connection abnormally and says nothing.
	CutAbort
)

// String returns the word of the file.
func (c CutStream) String() string { return word(cutStreams, int(c)) }

// LogFormat is the form of a log record.
type LogFormat uint8

const (
	// LogText writes key=value records.
	LogText LogFormat = iota
	// LogJSON writes one JSON object per record.
	LogJSON
)

// String returns the word of the file.
func (f LogFormat) String() string { return word(logFormats, int(f)) }

// Default returns the configuration of an empty file: every key at its default, and no pools, which Load and
// FromFlags would refuse. A new value on each call.
func Default() *Config {
	return &Config{
		Listen:     "0.0.0.0:8080",
		Admin:      "127.0.0.1:9090",
		Limit:      time.Hour,
		FirstByte:  time.Hour,
		Idle:       time.Hour,
		Drain:      time.Hour,
		DrainDelay: 5 * time.Second,
		KeepAlive:  15 * time.Second,
		MaxBody:    64 << 20,
		Log:        Log{Format: LogText, Level: slog.LevelInfo},
	}
}

// DefaultPool returns a pool of that name in which every optional key has its default; it has no endpoints yet.
func DefaultPool(name string) Pool {
	return Pool{
		Name:     name,
		Policy:   PolicyAuto,
		Gates:    GatesDefault,
		WhenFull: WhenFullSeconds,
		// One waiting request is enough: a server that queues has no use for more. 0.95 leaves room for what decoding
		// adds beyond the expectation. 16384 tokens is several steps of prefill on every server we measured.
		Full: Full{Waiting: 1, MaxNumSeqs: 0, ProjectedKV: 0.95, LongPrompt: 16384},
	}
}
