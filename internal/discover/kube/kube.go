// Package kube finds a pool's endpoints in Kubernetes: the pods of an InferencePool, of a label selector or of an AIBrix
// model, and the addresses of a Service's EndpointSlices.
//
// It reads three kinds of objects in one namespace at a time and writes none. client-go's reflector lists and watches
// them, and survives what watches go through: 410, token rotation, an API server that is replaced or away. Beside that,
// guard.go notices a watch that went silent, and lists anew every few minutes in case an event was lost. While the API
// server is away nothing is sent: a pool serves on with what is known.
//
// It is the only package that knows Kubernetes' types. A Cluster holds one mirror, with one goroutine, per namespace
// and kind, for as long as some Discoverer that needs it runs; the last one to end waits for it.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"pointsman.dev/pointsman/internal/discover"
)

const (
	// settle is how long changes are collected before a set is made of them: a rollout changes many pods at once.
	settle = 20 * time.Millisecond
	// dialEvery is how often the way to the API server is looked for while it is not known.
	dialEvery = 5 * time.Second

	// Between two attempts to list or watch the pauses double from the first to the longest, and are up to so much longer.
	retryFirst  = 500 * time.Millisecond
	retryMost   = 2 * time.Second
	retryJitter = 0.3
)

// Access says how to reach the API server. The zero value is the service account of the pod that this runs in.
type Access struct {
	Kubeconfig string // a file; "" is the service account
	Context    string // of that file; "" is its current one
}

// Cluster is one API server and what was learnt from it. Its methods are safe for concurrent use.
type Cluster struct {
	log  *slog.Logger
	dial func() (*connection, error)

	mu      sync.Mutex
	conn    *connection
	mirrors map[mirrorKey]*mirror
}

// connection is a way to the API server.
type connection struct {
	namespace string // our own
	open      func(k kind, namespace string) cache.ListerWatcher
	close     func() // closes every connection, those in use too
}

// NewCluster returns the cluster that a leads to. Nothing is contacted before a Discoverer runs.
func NewCluster(a Access, log *slog.Logger) *Cluster {
	return &Cluster{log: log, dial: func() (*connection, error) { return dial(a, log) }, mirrors: map[mirrorKey]*mirror{}}
}

// Discover returns the Discoverer of one source.
func (c *Cluster) Discover(s Source) discover.Discoverer { return &discoverer{cluster: c, source: s} }

// connect returns the way to the API server, looking for it until there is one.
func (c *Cluster) connect() (*connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	c.conn = conn
	return conn, nil
}

type mirrorKey struct {
	kind      kind
	namespace string
}

// acquire returns the mirror of a kind in a namespace, starting it if nobody had it. kick gets a token at each change.
func (c *Cluster) acquire(conn *connection, key mirrorKey, kick chan<- struct{}) *mirror {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mirrors[key]
	if m == nil {
		m = newMirror(key)
		c.mirrors[key] = m
		g := newGuard(conn.open(key.kind, key.namespace), m, c.log)
		r := cache.NewReflectorWithOptions(g, key.kind.expected(), m, cache.ReflectorOptions{Name: string(key.kind), Backoff: &wait.Backoff{
			Duration: retryFirst, Factor: 2, Cap: retryMost, Steps: 16, Jitter: retryJitter}})
		ctx, cancel := context.WithCancel(context.Background()) // it outlives whoever asked first
		m.stop = cancel
		go func() {
			defer close(m.ended)
			follow(ctx, r)
		}()
	}
	m.users++
	m.subscribe(kick)
	return m
}

// follow lists and watches until ctx ends. The reflector's own loop would wait for up to a minute after a long absence of
// the API server, and log each failure, which the guard says already.
func follow(ctx context.Context, r *cache.Reflector) {
	delay := retryFirst
	for {
		start := time.Now()
		_ = r.ListAndWatchWithContext(ctx)
		if time.Since(start) > time.Minute {
			delay = retryFirst
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(delay, retryJitter)):
		}
		delay = min(2*delay, retryMost)
	}
}

// release gives a mirror back; the last user waits until it has ended.
func (c *Cluster) release(conn *connection, m *mirror, kick chan<- struct{}) {
	m.unsubscribe(kick)
	c.mu.Lock()
	m.users--
	last := m.users == 0
	if last {
		delete(c.mirrors, m.key)
	}
	c.mu.Unlock()
	if !last {
		return
	}
	m.stop()
	<-m.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mirrors) == 0 { // nobody asked meanwhile
		conn.close()
	}
}

// broken returns what is wrong with the first mirror of a source that is not the truth, "" if there is none.
func (c *Cluster) broken(s Source) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Namespace == "" && c.conn != nil {
		s.Namespace = c.conn.namespace
	}
	for k := range s.kinds() {
		if m := c.mirrors[mirrorKey{k, s.Namespace}]; m != nil {
			if why := m.condition.Broken(); why != "" {
				return string(k) + ": " + why
			}
		}
	}
	return ""
}

// discoverer is the endpoints of one source.
type discoverer struct {
	discover.Condition // but for that of the mirrors

	cluster *Cluster
	source  Source
}

// Run implements discover.Discoverer. The set is in the order of the addresses, IPv4 first, then of the ports.
func (d *discoverer) Run(ctx context.Context, up chan<- []discover.Target) {
	trouble := discover.NewComplaint(d.cluster.log, &d.Condition, d.source.attributes()...)
	conn := d.connect(ctx, &trouble)
	if conn == nil {
		return
	}
	kick := make(chan struct{}, 1)
	v := &view{source: d.source, namespace: d.source.Namespace}
	if v.namespace == "" {
		v.namespace = conn.namespace
	}
	for k, required := range d.source.kinds() {
		m := d.cluster.acquire(conn, mirrorKey{k, v.namespace}, kick)
		defer d.cluster.release(conn, m, kick)
		v.mirrors = append(v.mirrors, viewed{m, required})
	}
	var set []discover.Target
	said := ""
	for {
		next, err := v.targets()
		if said != v.protocol {
			said = v.protocol
			d.mention(said)
		}
		switch {
		case errors.Is(err, errNotYet): // the guard says what is wrong with the API server
		case err != nil:
			trouble.Broken(err, len(set), time.Now())
		default:
			trouble.Whole(time.Now())
		}
		if next != nil && (set == nil || !slices.Equal(next, set)) {
			select {
			case up <- slices.Clone(next):
			case <-ctx.Done():
				return
			}
			set = next
			d.sayNothing(v, set)
		}
		if !waitFor(ctx, kick) {
			return
		}
	}
}

// Broken implements discover.Discoverer.
func (d *discoverer) Broken() string {
	if why := d.Condition.Broken(); why != "" {
		return why
	}
	return d.cluster.broken(d.source)
}

// sayNothing says why a set is empty.
func (d *discoverer) sayNothing(v *view, set []discover.Target) {
	if len(set) == 0 {
		d.cluster.log.Warn("no endpoints found", append(d.source.attributes(), "why", v.nothing())...)
	}
}

// mention says that the wish for a protocol which endpoints are not spoken to in is not followed.
func (d *discoverer) mention(protocol string) {
	if protocol == "" || protocol == "http" || protocol == "kubernetes.io/ws" {
		return
	}
	d.cluster.log.Warn("appProtocol is not followed: endpoints are spoken to with HTTP/1.1 in clear text, which model servers answer on the same port",
		append(d.source.attributes(), "appProtocol", protocol)...)
}

// waitFor returns after the next change, and a little later so that it is not alone; false when ctx ended.
func waitFor(ctx context.Context, kick <-chan struct{}) bool {
	select {
	case <-kick:
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(settle):
		return true
	case <-ctx.Done():
		return false
	}
}

// connect looks for the API server until it is found; nil when ctx ended before.
func (d *discoverer) connect(ctx context.Context, trouble *discover.Complaint) *connection {
	for {
		if ctx.Err() != nil {
			return nil
		}
		conn, err := d.cluster.connect()
		if err == nil {
			return conn
		}
		trouble.Broken(fmt.Errorf("finding the API server: %w", err), 0, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(dialEvery):
		}
	}
}
