package acceptance

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const (
	envoyReaders = 1000 // streams whose clients read
	envoyIdlers  = 20   // streams whose clients never read, of a source that sends as fast as it can

	envoyBudget = 400_000_000      // resident above idle while all run: 82 to 212 MB were seen; what is unread is gigabytes a minute
	envoyStay   = 10 * time.Second // long enough for the program to see that there is a crowd: it looks every 4 s, and gives memory back behind one
)

// TestEnvoyCrowd: a thousand streams at once through Envoy, beside some whose clients never read, end whole, and then nothing is left of
// them: no booking, no goroutine, no descriptor, no memory.
func TestEnvoyCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and measures the program")
	}
	envoyPath(t)
	source := &pacer{gap: crowdGap}
	good := modelServer(t, "m", eventSource(source).ServeHTTP)
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	at := "127.0.0.1:" + envoyPort(t)
	p := serveBuilt(t, bin, "limit: 10m\nextproc: {listen: \""+at+"\"}\npools:\n  - {name: good, endpoints: ["+good.URL+"]}\n")
	base := envoy(t, []string{good.URL}, at)
	eventually(t, patience, func() string {
		if _, err := readEvents(base, "", 1, true); err != nil {
			return err.Error()
		}
		return ""
	})
	of := &process{cmd: p.cmd, url: p.api}
	steady(t, of)
	before := p.gauges(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	for range envoyIdlers {
		all.Go(func() { holdUnread(ctx, t, base) })
	}
	begun, read := time.Now(), readCrowd(t, base, envoyReaders)
	p.inFlight(t, envoyReaders+envoyIdlers)
	within(t, fmt.Sprintf("envoy_crowd_%d_above_idle", envoyReaders+envoyIdlers), steady(t, of)-int64(before["process_resident_memory_bytes"]), envoyBudget)
	time.Sleep(envoyStay - time.Since(begun))
	source.over.Store(true)
	<-read
	p.inFlight(t, envoyIdlers)
	leave()
	all.Wait()
	p.backTo(t, before)
}
