package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"pointsman.dev/pointsman/internal/discover"
)

const (
	// answerLimit bounds one list, and how long a watch takes to begin. After that it has no limit but its silence.
	answerLimit = 30 * time.Second
	// silence is how long a watch is believed that says nothing. Most servers that are well send a bookmark each minute.
	silence = 150 * time.Second
	// trust is how long a list is built upon: the first watch that would start later is refused, and the reflector lists
	// anew. Watches end after 5 to 10 minutes. What was lost on the way, by whoever's fault, is found then.
	trust = 5 * time.Minute
	// absentPause is how long nothing is asked after the answer that a kind is not installed, or not ours to see.
	absentPause = 15 * time.Second
)

// guard is the cache.ListerWatcher of a mirror. It passes on what the inner one does, and sees to it that a mirror that
// is not the truth is noticed and said.
type guard struct {
	cache.ListWatch
	inner  cache.ListerWatcherWithContext
	mirror *mirror

	mu      sync.Mutex
	trouble discover.Complaint
	listed  time.Time // when the last list was asked for that was answered
	silent  bool      // a watch went silent since
}

func newGuard(inner cache.ListerWatcher, m *mirror, log *slog.Logger) *guard {
	g := &guard{inner: cache.ToListerWatcherWithContext(inner), mirror: m,
		trouble: discover.NewComplaint(log, &m.condition, "kubernetes", string(m.key.kind), "namespace", m.key.namespace)}
	g.ListWithContextFunc, g.WatchFuncWithContext = g.list, g.watch
	return g
}

// IsWatchListSemanticsUnSupported makes the reflector take lists the plain way: they are short here, every server knows
// it, and the guard can tell a list from a watch.
func (g *guard) IsWatchListSemanticsUnSupported() bool { return true }

func (g *guard) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	list, err := g.inner.ListWithContext(limited, opts)
	if err != nil {
		g.failed(ctx, "listing", err)
		return nil, err
	}
	g.mu.Lock()
	g.listed, g.silent = start, false
	g.mu.Unlock()
	g.mirror.deny(nil)
	return list, nil
}

func (g *guard) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	g.mu.Lock()
	stale := g.silent || time.Since(g.listed) > trust
	g.mu.Unlock()
	if stale {
		return nil, apierrors.NewResourceExpired("time for a new list")
	}
	own, cancel := context.WithCancel(ctx)
	slow := time.AfterFunc(answerLimit, cancel)
	w, err := g.inner.WatchWithContext(own, opts)
	if began := slow.Stop(); err != nil {
		cancel()
		if !began {
			err = fmt.Errorf("not begun within %v: %w", answerLimit, err)
		}
		g.failed(ctx, "watching", err)
		return nil, err
	}
	g.mu.Lock()
	g.trouble.Whole(time.Now()) // not after a list: a watch may be forbidden where a list is not
	g.mu.Unlock()
	return watchSilence(w, g.fellSilent, cancel), nil
}

// fellSilent makes the next watch a list. That is no trouble yet: a server that has seen no object of a kind change since
// its own start sends no bookmarks either, and answers the list.
func (g *guard) fellSilent() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = true
}

// failed records an error. Of the two kinds of InferencePools a cluster seldom has both, and a gateway that is here for
// Services need not see either: that is no trouble of its own, and is asked for again with less haste.
func (g *guard) failed(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	err = g.explained(err)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		g.mirror.deny(err)
		if synced, _ := g.mirror.state(); g.mirror.key.kind.isPool() && !synced { // a server that starts says so at first, too
			g.mu.Lock()
			g.trouble.Whole(time.Now()) // it was away, and answers again
			g.mu.Unlock()
			select {
			case <-time.After(absentPause):
			case <-ctx.Done():
			}
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trouble.Broken(fmt.Errorf("%s: %w", doing, err), g.mirror.count(), time.Now())
}

// explained says what there is to do about an answer, where the server's words do not.
func (g *guard) explained(err error) error {
	k := g.mirror.key
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; needed: a Role in namespace %s with the verbs list and watch for %s, bound to this user", err, k.namespace, k.kind)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the API server does not take the token or certificate: expired, revoked or of another cluster", err)
	case apierrors.IsNotFound(err) && k.kind.isPool():
		gvr := k.kind.inferencePools()
		return fmt.Errorf("%w: the server has no %s, whose CustomResourceDefinition is not installed", err, k.kind+"/"+kind(gvr.Version))
	}
	return err
}

// watched is a watch that ends when it says nothing for too long.
type watched struct {
	inner watch.Interface
	out   chan watch.Event
	once  sync.Once
	stop  chan struct{}
}

// watchSilence returns w with an end to its silence, of which fell is told. free is called when the watch is over.
func watchSilence(w watch.Interface, fell, free func()) watch.Interface {
	s := &watched{inner: w, out: make(chan watch.Event), stop: make(chan struct{})}
	go func() {
		defer free()
		s.run(fell)
	}()
	return s
}

// ResultChan implements watch.Interface.
func (w *watched) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *watched) Stop() { w.once.Do(func() { close(w.stop) }) }

func (w *watched) run(fell func()) {
	defer close(w.out)
	defer w.inner.Stop()
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		select {
		case event, open := <-w.inner.ResultChan():
			if !open {
				return
			}
			select {
			case w.out <- event:
			case <-w.stop:
				return
			}
			quiet.Reset(silence)
		case <-quiet.C:
			fell()
			return
		case <-w.stop:
			return
		}
	}
}

var errNotYet = errors.New("waiting for the first list")
