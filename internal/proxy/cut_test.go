package proxy

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestCutInPieces: an engine's own word that its answer is not complete may arrive in pieces of which the first are out
// already. The error must still be an event of its own, of the server's kind, and no end marker may follow.
func TestCutInPieces(t *testing.T) {
	const (
		ended = `data: {"error":{"message":"the model server ended the stream before the answer was complete","type":"server_error","param":null,"code":"`
		abort = ended + `engine_abort"}}` + "\n\n"
		eof   = ended + `upstream_eof"}}` + "\n\n"
		boom  = `data: {"error":{"message":"boom"}}`
	)
	for _, c := range []struct {
		name   string
		pieces []string
		want   string
	}{
		{"abort", []string{delta("a"), finishAbort[:60], finishAbort[60:] + doneEvent}, delta("a") + finishAbort[:60] + "\n\n" + abort},
		{"abort in one piece", []string{delta("a"), delta("b") + finishAbort, doneEvent}, delta("a") + delta("b") + abort},
		{"abort in the first event", []string{finishAbort[:60], finishAbort[60:]}, "\n\n" + abort},
		{"end in other words", []string{delta("a"), "data: [do", "ne]\n\n"}, delta("a") + "data: [do\n\n" + abort},
		{"end of a drained stream", []string{usageEvent, "data: [DO", "NE]\n\n"}, usageEvent + "\n\n" + abort},
		{"inside a line break", []string{delta("a"), "data: {}\r"}, delta("a") + "data: {}\r\n\n" + eof},
		{"error without a blank line", []string{delta("a"), boom}, delta("a") + boom + "\n\n"},
		{"error and end", []string{delta("a"), boom + "\n\n" + doneEvent}, delta("a") + boom + "\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
					for _, p := range c.pieces {
						answerStream(w, p)
						if !sleepOr(r, time.Second) {
							return
						}
					}
				}, func(*Config) {})
				_, _, body, err := b.post(streamBody)
				if err == nil || body != c.want {
					t.Errorf("%v, got\n%s\nwant\n%s", err, body, c.want)
				}
				if rec := <-b.records; rec["outcome"] != "cut" || strings.Contains(body, "[DONE]") {
					t.Errorf("record %v", rec)
				}
				b.idle()
				b.stop()
			})
		})
	}
}
