package app

import (
	"bytes"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/proxy"
)

// A drain that lasts says every so often how much it waits for and how old the oldest is, and no more once it is over.
func TestSayDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		g := &Gateway{log: slog.New(slog.NewTextHandler(&out, nil))}
		g.proxy.Store(proxy.New(proxy.Config{Directory: pool.NewDirectory()}))
		stop := g.sayDraining()
		body, release := newWaiting()
		go g.serveAPI(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/chat/completions", body))
		time.Sleep(2*drainLogEvery + time.Second)
		stop()
		release()
		synctest.Wait()
		time.Sleep(time.Hour)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.HasSuffix(lines[1], `msg="still draining" in_flight.requests=1 in_flight.oldest=30s`) {
			t.Errorf("the log says\n%s", out.String())
		}
	})
}

// newWaiting is a request's body that does not come until it is released, and then not at all.
func newWaiting() (body waiting, release func()) {
	body = make(waiting)
	return body, func() { close(body) }
}

type waiting chan struct{}

func (w waiting) Read([]byte) (int, error) {
	<-w
	return 0, io.ErrUnexpectedEOF
}
