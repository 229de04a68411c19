// Package records hands a test the access records that the code under test writes.
//
// It is for tests only.
package records

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// Channel is a slog handler that sends each access record as its attributes, name to text, and drops other lines. Whoever logs waits while it
// is full.
type Channel chan map[string]string

// Enabled is true for every level.
func (Channel) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs drops the attributes: records are whole by themselves.
func (c Channel) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup drops the group.
func (c Channel) WithGroup(string) slog.Handler { return c }

// Handle sends r if it is an access record.
func (c Channel) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "request" {
		return nil
	}
	m := map[string]string{}
	r.Attrs(func(a slog.Attr) bool { m[a.Key] = a.Value.String(); return true })
	c <- m
	return nil
}

// Next returns the next access record, or ends the test if there is none within a minute.
func (c Channel) Next(t testing.TB) map[string]string {
	t.Helper()
	select {
	case m := <-c:
		return m
	case <-time.After(time.Minute):
		t.Fatal("no access record within a minute")
		return nil
	}
}

// Drop forgets the records that nobody took.
func (c Channel) Drop() {
	for len(c) > 0 {
		<-c
	}
}
