package scrape

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"pointsman.dev/pointsman/internal/pool"
)

const (
	warmTick = 100 * time.Millisecond
	// warmMost is how long the requests of one shape may take: a compiler may be at work.
	warmMost  = 2 * time.Minute
	warmError = 512 // bytes of an error's text that are read
)

// warm sends the synthetic requests whenever the pool wants, until ctx ends.
func (p *poller) warm(ctx context.Context) {
	for {
		if shapes, model, ok := p.f.pool.WarmUp(p.url); ok {
			begun := time.Now()
			err := p.warmUp(ctx, shapes, model)
			if ctx.Err() != nil {
				return
			}
			p.f.pool.Warmed(p.url, time.Since(begun), err)
		}
		if !pause(ctx, warmTick) {
			return
		}
	}
}

// warmUp goes through all shapes, also when one is refused, and returns the first error.
func (p *poller) warmUp(ctx context.Context, shapes []pool.WarmRequest, model string) error {
	var first error
	for _, w := range shapes {
		shape, cancel := context.WithTimeout(ctx, warmMost)
		var wg sync.WaitGroup
		failed := make([]error, max(1, w.AtOnce))
		for i := range failed {
			wg.Go(func() { failed[i] = p.complete(shape, model, w) })
		}
		wg.Wait()
		cancel()
		if err := cmp.Or(failed...); err != nil && first == nil {
			first = fmt.Errorf("warming up with a prompt of %d tokens: %w", w.Prompt, err)
		}
	}
	return first
}

// complete sends one request and waits for the whole answer.
func (p *poller) complete(ctx context.Context, model string, w pool.WarmRequest) error {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": words(w.Prompt), "max_tokens": w.Output})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, warmError))
		return fmt.Errorf("status %d: %q", resp.StatusCode, said)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// words returns text of about n tokens that no other request begins with.
func words(n int) string {
	var b strings.Builder
	b.Grow(n * 4)
	for range n {
		b.WriteByte(' ')
		for range 3 {
			b.WriteByte('a' + byte(rand.IntN(26)))
		}
	}
	return b.String()
}
