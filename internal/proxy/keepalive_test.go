package proxy

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestKeepAlive: silence of a stream is broken by comments, between events only, whatever the endpoint's writes cut apart.
// What the endpoint sent arrives unchanged, and its silence goes on counting towards our own limits.
func TestKeepAlive(t *testing.T) {
	const ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
	stop := `event: message_stop` + "\ndata: {\"type\":\"message_stop\"}\n\n"
	first, second := delta("a"), delta("b")
	for _, c := range []struct {
		name, path string
		body       string
		every      time.Duration
		writes     []string // one each 40 s, the first at once
		want       string   // "!" stands for what keeps alive
	}{
		{"before the first event", chat, streamBody, 15 * time.Second, []string{"", first, finishStop + doneEvent}, "!!" + first + "!!" + finishStop + doneEvent},
		{"off", chat, streamBody, 0, []string{"", first, finishStop + doneEvent}, first + finishStop + doneEvent},
		{"inside a line", chat, streamBody, 15 * time.Second, []string{first + second[:20], second[20:] + finishStop, doneEvent}, first + second + finishStop + "!!" + doneEvent},
		{"between the lines of an event", chat, streamBody, 15 * time.Second, []string{first, second[:len(second)-1], "\n" + finishStop, doneEvent}, first + "!!" + second + finishStop + "!!" + doneEvent},
		{"between CR and LF", chat, streamBody, 15 * time.Second, []string{strings.ReplaceAll(first, "\n", "\r\n")[:len(first)+1], "\n" + finishStop + doneEvent}, strings.ReplaceAll(first, "\n", "\r\n")[:len(first)+1] + "!!" + "\n" + finishStop + doneEvent},
		{"its own comments count", chat, streamBody, 30 * time.Second, []string{first, ": engine\n\n", finishStop + doneEvent}, first + "!: engine\n\n!" + finishStop + doneEvent},
		{"messages", "/v1/messages", streamBody, 15 * time.Second, []string{"", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n", stop}, "!!event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n!!" + stop},
		{"not a stream", chat, chatBody, 15 * time.Second, []string{"", `{"choices":[]}`}, `{"choices":[]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
					kind := "text/event-stream"
					if c.body == chatBody {
						kind = "application/json"
					}
					w.Header().Set("Content-Type", kind)
					for i, text := range c.writes {
						if i > 0 {
							time.Sleep(40 * time.Second)
						}
						_, _ = w.Write([]byte(text))
						w.(http.Flusher).Flush()
					}
				}, func(cfg *Config) { cfg.KeepAlive = c.every })
				res, err := b.client.Post("http://gw"+c.path, "application/json", strings.NewReader(c.body))
				if err != nil {
					t.Fatal(err)
				}
				got, err := read(res)
				alive := string(commentLine)
				if c.path != chat {
					alive = ping
				}
				if want := strings.ReplaceAll(c.want, "!", alive); got != want || err != nil {
					t.Errorf("%v\ngot  %q\nwant %q", err, got, want)
				}
				if rec := <-b.records; rec["outcome"] != "ok" {
					t.Errorf("record %v", rec)
				}
				b.idle()
				b.stop()
			})
		})
	}
}

// TestKeepAliveIsNoProgress: an endpoint that says nothing is cut by first_byte and idle as if no comment had been sent, and
// the error event stands alone.
func TestKeepAliveIsNoProgress(t *testing.T) {
	for _, began := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
				answerStream(w)
				if began {
					answerStream(w, delta("a")+"data: {\"cho")
				}
				<-r.Context().Done()
			}, func(c *Config) {
				c.KeepAlive, c.FirstByte, c.Idle = 7*time.Second, time.Minute, time.Minute
			})
			begun := time.Now()
			_, _, text, err := b.post(streamBody)
			if took := time.Since(begun).Round(time.Millisecond); took != time.Minute || err == nil {
				t.Errorf("%v after %v", err, took)
			}
			want, code := strings.Repeat(string(commentLine), 8), "first_byte_timeout"
			if began {
				want, code = delta("a")+"data: {\"cho\n\n", "stream_idle_timeout"
			}
			if rest, ok := strings.CutPrefix(text, want); !ok || !strings.HasPrefix(rest, "data: {\"error\"") || !strings.Contains(rest, code) {
				t.Errorf("got %q", text)
			}
			<-b.gone
			b.idle()
			b.stop()
		})
	}
}

// TestModelLimits: a model's own limits hold for its requests, are advertised, and are named when they fire.
func TestModelLimits(t *testing.T) {
	for _, c := range []struct {
		gateway   Limits
		own       Limits
		model     string
		body      string
		took      time.Duration
		advertise string
		has       string
	}{
		{Limits{}, Limits{Limit: 90 * time.Minute}, "m", chatBody, 90 * time.Minute, "5400", "1h30m0s (limit of the model in the configuration"},
		{Limits{}, Limits{Limit: 500 * time.Millisecond}, "m", chatBody, 500 * time.Millisecond, "0.5", "500ms (limit of the model in"},
		{Limits{}, Limits{Limit: time.Hour, FirstByte: time.Minute}, "m", streamBody, time.Minute, "3600", "1m0s (first_byte of the model in"},
		{Limits{}, Limits{Limit: time.Minute}, "fast", chatBody, time.Hour, "3600", "1h0m0s (limit in the configuration"},
		// what a model has from the gateway is the gateway's
		{Limits{Limit: time.Hour, FirstByte: time.Minute}, Limits{Limit: 2 * time.Hour, FirstByte: time.Minute}, "m", streamBody, time.Minute, "7200", "1m0s (first_byte in the configuration"},
		{Limits{Limit: time.Hour}, Limits{Limit: time.Hour, Idle: time.Minute}, "m", chatBody, time.Hour, "3600", "1h0m0s (limit in the configuration"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
				func(cfg *Config) { cfg.Limits, cfg.Models = c.gateway, map[string]Limits{c.model: c.own} })
			begun := time.Now()
			status, h, text, err := b.post(c.body)
			if took := time.Since(begun); took != c.took || status != 504 || err != nil || !strings.Contains(text, c.has) || h.Get(headerLimit) != c.advertise {
				t.Errorf("status %d, %v, after %v, limit %q: %s", status, err, took, h.Get(headerLimit), text)
			}
			<-b.gone
			b.idle()
			b.stop()
		})
	}
}
