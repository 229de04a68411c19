package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// demoLoad is what a small team sends: chats that come back turn after turn behind a few shared system prompts, now
// and then a long document, now and then a client that leaves. Closed loop: a conversation waits for its answer.
type demoLoad struct {
	url    string // of the gateway's API
	model  string
	client *http.Client

	requests, failed, cancelled atomic.Int64
}

type demoMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// newDemoLoad prepares load from conns conversations at a time.
func newDemoLoad(url, model string, conns int) *demoLoad {
	return &demoLoad{url: url, model: model, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: conns, IdleConnTimeout: 4 * time.Second}}}
}

// run keeps n conversations going until ctx ends.
func (d *demoLoad) run(ctx context.Context, n int) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 42)) //nolint:gosec // a demo's load needs no secrecy, the same one each time is easier to compare
			for chat := 0; ctx.Err() == nil; chat++ {
				d.conversation(ctx, rnd, i*1000+chat)
			}
		})
	}
	wg.Wait()
	d.client.CloseIdleConnections()
}

// conversation is three to seven turns behind one of three system prompts of about 1,500 tokens; one in eight starts
// with a document of about 6,000 tokens.
func (d *demoLoad) conversation(ctx context.Context, rnd *rand.Rand, id int) {
	tenant := rnd.IntN(3)
	messages := []demoMessage{{"system", fmt.Sprintf("You answer for tenant %d. %s", tenant, demoText(uint64(tenant), 6000))}}
	if rnd.IntN(8) == 0 {
		messages = append(messages, demoMessage{"user", "Read this. " + demoText(uint64(id)+10_000, 24_000)},
			demoMessage{"assistant", "I have read it."})
	}
	for turn := range 3 + rnd.IntN(5) {
		messages = append(messages, demoMessage{"user", demoText(uint64(id*100+turn)+1_000_000, 100+rnd.IntN(500))})
		answer, ok := d.turn(ctx, rnd, messages)
		if !ok {
			pause(ctx, 300*time.Millisecond)
			return
		}
		messages = append(messages, demoMessage{"assistant", answer})
		pause(ctx, time.Duration(200+rnd.IntN(1200))*time.Millisecond)
	}
}

// turn streams one answer and returns its text; one in forty clients leaves after half a second.
func (d *demoLoad) turn(ctx context.Context, rnd *rand.Rand, messages []demoMessage) (string, bool) {
	if ctx.Err() != nil {
		return "", false
	}
	leaves := rnd.IntN(40) == 0
	if leaves {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
	}
	body, err := json.Marshal(map[string]any{"model": d.model, "messages": messages, "stream": true, "max_tokens": 40 + rnd.IntN(160),
		"stream_options": map[string]any{"include_usage": true}})
	if err != nil {
		return "", false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", false
	}
	req.Header.Set("Content-Type", "application/json")
	d.requests.Add(1)
	resp, err := d.client.Do(req)
	if err != nil {
		d.ended(ctx)
		return "", false
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.ended(ctx)
		return "", false
	}
	return streamText(raw), true
}

// ended counts a request that brought no answer: as cancelled when its own client left.
func (d *demoLoad) ended(ctx context.Context) {
	if ctx.Err() != nil {
		d.cancelled.Add(1)
	} else {
		d.failed.Add(1)
	}
}

// streamText joins the content pieces of a chat stream.
func streamText(raw []byte) string {
	var text strings.Builder
	for line := range bytes.Lines(raw) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if !ok || data[0] != '{' {
			continue
		}
		var event struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if json.Unmarshal(data, &event) == nil && len(event.Choices) > 0 {
			text.WriteString(event.Choices[0].Delta.Content)
		}
	}
	return text.String()
}

var demoWords = strings.Fields("points signal track train platform engine whistle station bridge tunnel freight coal water timetable carriage " +
	"guard ticket junction crossing lamp lever frame siding gauge rail sleeper ballast buffer coupling brake steam pressure")

// demoText is n bytes of words that a seed decides from the first word on.
func demoText(seed uint64, n int) string {
	rnd := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // text of a demo
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(demoWords[rnd.IntN(len(demoWords))])
		b.WriteByte(' ')
	}
	return b.String()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
