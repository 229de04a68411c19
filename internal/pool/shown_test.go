package pool

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// logged is a pool of n endpoints of which nothing was heard, and its log.
func logged(n int) (*Pool, *clock, *strings.Builder) {
	log, c := new(strings.Builder), &clock{}
	p := New(Config{Name: "chat"}, slog.New(slog.NewTextHandler(log, nil)), c.now)
	p.SetTargets(targets(n))
	return p, c, log
}

var errRefused = errors.New("scraping http://10.0.0.0:8000/metrics: dial tcp 10.0.0.0:8000: connect: connection refused")

// TestUnreachableFromTheStart: what failed is said at once, once per endpoint.
func TestUnreachableFromTheStart(t *testing.T) {
	p, c, log := logged(3)
	for range 300 {
		for i := range 3 {
			p.ReportFailed(addr(i), errRefused)
			p.LearnFailed(addr(i), errRefused)
			p.HealthProbe(addr(i), 0, errRefused)
		}
		c.advance(100 * time.Millisecond)
		if n := strings.Count(log.String(), "level=WARN msg=\"endpoint does not answer\""); n != 3 {
			t.Fatalf("said %d times after %v, want once per endpoint:\n%s", n, c.now(), log)
		}
	}
	if !strings.Contains(log.String(), "connection refused") {
		t.Errorf("the cause is not said:\n%s", log)
	}
	for _, e := range p.Status().Endpoints {
		if e.Heard || e.Cause == "" {
			t.Errorf("%s: heard %v, cause %q", e.Name, e.Heard, e.Cause)
		}
	}
	p.Report(addr(0), idle())
	if e := endpoint(t, p, 0); !e.Heard {
		t.Error("an answer was not heard")
	}
}

// TestManyUnreachable: a large pool that cannot be reached does not fill the log, and no endpoint goes uncounted.
func TestManyUnreachable(t *testing.T) {
	p, c, log := logged(500)
	for range 20 {
		for i := range 500 {
			p.ReportFailed(addr(i), errRefused)
		}
		c.advance(100 * time.Millisecond)
		p.Status()
	}
	if n := strings.Count(log.String(), "endpoint does not answer"); n != missedLines {
		t.Errorf("%d lines, want %d", n, missedLines)
	}
	if !strings.Contains(log.String(), "msg=\"more endpoints do not answer\" pool=chat count=492") {
		t.Errorf("the rest is not counted:\n%s", log)
	}
}

func no(status int) error { return &AnswerError{Status: status} }

// TestNoModelServer: what answers everything with 404 is named once, gets nothing while another endpoint is there, and is
// used all the same when it is the last one. An answer to a request redeems it.
func TestNoModelServer(t *testing.T) {
	p, c, log := logged(2)
	p.Report(addr(1), idle())
	refute := func() {
		p.HealthProbe(addr(0), 404, nil)
		p.ReportFailed(addr(0), no(404))
		p.LearnFailed(addr(0), no(404))
		c.advance(200 * time.Millisecond)
		p.Report(addr(1), idle())
	}
	for range 10 {
		refute()
	}
	if n := strings.Count(log.String(), "endpoint is no model server"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log)
	}
	if e := endpoint(t, p, 0); e.State != "warming" || !e.NoModelServer || !strings.Contains(e.Cause, "status 404") {
		t.Errorf("state %s, cause %q", e.State, e.Cause)
	}
	for range 50 { // in flight all the time: the other is loaded, and still preferred
		if b := mustPick(t, p, prompt("x", nil)); b.Endpoint().URL.String() != addr(1) {
			t.Fatal("it was picked although another endpoint is there")
		}
	}
	p.SetTargets(targets(1))
	if p.Status().Ready {
		t.Error("the pool is ready without a model server")
	}
	b := mustPick(t, p, prompt("x", nil))
	b.FirstToken()
	b.Done(ok(1, 1))
	if e := endpoint(t, p, 0); e.State != "ready" || e.NoModelServer || !p.Status().Ready {
		t.Errorf("after an answer: state %s", e.State)
	}
	refute()
	if !p.Status().Ready {
		t.Error("pages that were never there speak against an endpoint that serves")
	}
}

// TestListingModelsFails: said once per failure that lasts, not for one that passes, and not of a list that is there.
func TestListingModelsFails(t *testing.T) {
	p, _, log := logged(1)
	said := func() int { return strings.Count(log.String(), "endpoint lists no models") }
	p.Report(addr(0), idle())
	p.LearnFailed(addr(0), no(401))
	if said() != 0 {
		t.Error("one failure was said")
	}
	for range 20 {
		p.LearnFailed(addr(0), no(401))
	}
	if said() != 1 || !strings.Contains(log.String(), "api_key_file") {
		t.Errorf("said %d times, want once with what to do:\n%s", said(), log)
	}
	if e := endpoint(t, p, 0); !e.WantsKey || e.ModelsError == "" || e.State != "ready" {
		t.Errorf("%+v", e)
	}
	p.Learned(addr(0), Facts{Models: []Model{{ID: "m"}}})
	if e := endpoint(t, p, 0); e.WantsKey || e.ModelsError != "" {
		t.Errorf("after a list: %+v", e)
	}
	p.LearnFailed(addr(0), errRefused)
	p.LearnFailed(addr(0), errRefused)
	if said() != 1 {
		t.Error("a server that is away has no model list to speak of")
	}
}

// TestOtherServerMakesNoModelKnown: a web server among model servers must not get requests for names that nobody lists.
func TestOtherServerMakesNoModelKnown(t *testing.T) {
	p, _, _ := logged(2)
	d := NewDirectory()
	d.Set([]*Pool{p}, nil)
	known := func() bool { _, err := d.Resolve("typo"); return err == nil }
	refute := func() {
		p.HealthProbe(addr(0), 404, nil)
		p.ReportFailed(addr(0), no(404))
		p.LearnFailed(addr(0), no(404))
	}
	refute()
	if !known() {
		t.Error("an endpoint that is the only one to say anything is not tried")
	}
	p.Learned(addr(1), Facts{Models: []Model{{ID: "m"}}})
	if known() {
		t.Error("a name that nobody lists is sent to a web server")
	}
	p.HealthProbe(addr(0), 200, nil)
	if !known() {
		t.Error("a model server without a list is not tried")
	}
	p.HealthProbe(addr(0), 404, nil)
	if known() {
		t.Error("it is no model server any more, and is tried")
	}
}
