package acceptance

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// extprocBudget is what the program may have resident while it picks for requests of 100 kB from eight streams.
const extprocBudget = 60_000_000

// picking is what a test needs to ask a processor as Envoy does, in pieces of 16 KiB.
type picking struct {
	client extprocv3.ExternalProcessorClient
	body   []byte
}

// round sends one request and takes pick and body back, which are those of a booking that ends with it.
func (p *picking) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := p.client.Process(ctx)
	if err != nil {
		return err
	}
	head := &corev3.HeaderMap{}
	for _, h := range [][2]string{{":method", "POST"}, {":path", "/v1/chat/completions"}, {"content-type", "application/json"}} {
		head.Headers = append(head.Headers, &corev3.HeaderValue{Key: h[0], RawValue: []byte(h[1])})
	}
	if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: head}}}); err != nil {
		return err
	}
	for rest := p.body; len(rest) > 0; {
		piece := rest[:min(len(rest), 16<<10)]
		rest = rest[len(piece):]
		if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: piece, EndOfStream: len(rest) == 0}}}); err != nil {
			return err
		}
	}
	for n := 0; ; {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if i := m.GetImmediateResponse(); i != nil {
			return fmt.Errorf("refused: %s", i.Body)
		}
		piece := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		n += len(piece.GetBody())
		if !piece.GetEndOfStream() {
			continue
		}
		if n != len(p.body) {
			return fmt.Errorf("%d bytes came back of %d", n, len(p.body))
		}
		return nil
	}
}

// TestMemoryOfPicks: the program as a processor, asked by one stream and by eight for requests of 100 kB.
func TestMemoryOfPicks(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	_, urls := fleet(t, 2)
	at := "127.0.0.1:" + envoyPort(t)
	p := serveBuilt(t, bin, "extproc: {listen: \""+at+"\"}\npools:\n  - {name: chat, "+list(urls...)+"}\n")
	p.settled(t, 2)
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := &picking{extprocv3.NewExternalProcessorClient(conn), []byte(saying("m", 1, 100_000, ""))}
	took := make([]time.Duration, 200)
	for i := range took {
		begun := time.Now()
		if err := ask.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	const crowd = 1600
	var failed atomic.Int32
	begun := time.Now()
	parallel(crowd, 8, func(int) {
		if ask.round(t.Context()) != nil {
			failed.Add(1)
		}
	})
	fmt.Printf("BenchmarkExtProc/100kB/1-stream 1 %.3f p50-ms\nBenchmarkExtProc/100kB/8-streams 1 %.0f rps\n", took[len(took)/2].Seconds()*1e3, crowd/time.Since(begun).Seconds())
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d requests got no pick", n, crowd)
	}
	within(t, "extproc", memory(t, p.cmd.Process.Pid, "VmHWM"), extprocBudget)
}
