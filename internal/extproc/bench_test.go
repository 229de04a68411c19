package extproc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// trivial is the least that an external processor can do: it keeps the body, picks at random (the first) and gives the body back.
type trivial struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (trivial) Process(out extprocv3.ExternalProcessor_ProcessServer) error {
	var r reply
	r.init()
	x := &stream{}
	var kept [][]byte
	for {
		m, err := out.Recv()
		if err != nil {
			return nil
		}
		b := m.GetRequestBody()
		if b == nil {
			continue
		}
		kept = append(kept, b.Body)
		if !b.EndOfStream {
			continue
		}
		h := &extprocv3.HeaderMutation{}
		set(h, headerDestination, "10.0.0.1:8000")
		if err := r.picked(out, h, x.pickMetadata("10.0.0.1:8000")); err != nil {
			return err
		}
		for i, k := range kept {
			if err := r.requestChunk(out, k, i == len(kept)-1); err != nil {
				return err
			}
		}
		kept = kept[:0]
	}
}

// dialLoopback serves s on a loopback socket and returns a client.
func dialLoopback(t testing.TB, serve func(net.Listener) error) extprocv3.ExternalProcessorClient {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return extprocv3.NewExternalProcessorClient(conn)
}

// round sends one request with its body in Envoy's pieces of 16 KiB and reads until the body is back.
func round(c extprocv3.ExternalProcessorClient, messages []*extprocv3.ProcessingRequest) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := c.Process(ctx)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if m.GetImmediateResponse() != nil {
			return fmt.Errorf("refused: %s", m.GetImmediateResponse().Body)
		}
		if m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
			_ = s.CloseSend()
			_, _ = s.Recv()
			return nil
		}
	}
}

func roundOf(n int) []*extprocv3.ProcessingRequest {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", n/5) + `"}]}`
	list := []*extprocv3.ProcessingRequest{requestHeaders("POST", chat, false, "x-request-id", "bench")}
	for rest := body; rest != ""; {
		p := rest[:min(len(rest), 16<<10)]
		rest = rest[len(p):]
		list = append(list, requestBody(p, rest == ""))
	}
	return list
}

// both are clients of Pointsman's processor and of the trivial one.
func both(b *testing.B) (ours, trivials extprocv3.ExternalProcessorClient) {
	b.Helper()
	plain := grpc.NewServer(grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow))
	extprocv3.RegisterExternalProcessorServer(plain, trivial{})
	b.Cleanup(plain.Stop)
	return dialLoopback(b, newRig(b, endpoints(2), quiet).server.Serve), dialLoopback(b, plain.Serve)
}

// BenchmarkRound is one request, headers and body there and back, over loopback.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		messages := roundOf(n)
		ours, trivials := both(b)
		for _, who := range []struct {
			name   string
			client extprocv3.ExternalProcessorClient
		}{{"pointsman", ours}, {"trivial", trivials}} {
			b.Run(fmt.Sprintf("%s/%d", who.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := round(who.client, messages); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkAgainstTrivial asks both processors in turns, so that what else the machine does meets both: its ratios say what Pointsman
// costs. Processor time is that of the client, too.
func BenchmarkAgainstTrivial(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		messages := roundOf(n)
		clients := [2]extprocv3.ExternalProcessorClient{}
		clients[0], clients[1] = both(b)
		b.Run(fmt.Sprintf("%d/1-stream", n), func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				for i, c := range clients {
					begun := time.Now()
					if err := round(c, messages); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(begun))
				}
			}
			var p50 [2]float64
			for i := range took {
				slices.Sort(took[i])
				p50[i] = float64(took[i][len(took[i])/2].Microseconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(p50[0], "p50-µs")
			b.ReportMetric(p50[0]/p50[1], "p50-ratio")
		})
		b.Run(fmt.Sprintf("%d/8-streams", n), func(b *testing.B) {
			const batch = 64
			var took, used [2]time.Duration
			for b.Loop() {
				for i, c := range clients {
					begun, before := time.Now(), processorTime()
					crowd(b, c, messages, batch)
					took[i] += time.Since(begun)
					used[i] += processorTime() - before
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(b.N*batch)/took[0].Seconds(), "rps")
			b.ReportMetric(float64(took[1])/float64(took[0]), "rps-ratio")
			b.ReportMetric(float64(used[0])/float64(used[1]), "cpu-ratio")
		})
	}
}

// crowd sends n requests over eight streams.
func crowd(b *testing.B, c extprocv3.ExternalProcessorClient, messages []*extprocv3.ProcessingRequest, n int) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range n / 8 {
				if err := round(c, messages); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// processorTime is what the process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func quiet(c *Config) { c.Access = nil }

// TestAllocations bounds what a request of 100 kB costs beside gRPC: its messages are known, and what goes out is thrown away.
func TestAllocations(t *testing.T) {
	r := newRig(t, endpoints(2), quiet)
	messages := roundOf(100_000)
	p := &thrown{played{ctx: t.Context()}}
	n := testing.AllocsPerRun(50, func() {
		p.in = messages
		if err := r.server.Process(p); err != nil {
			t.Fatal(err)
		}
	})
	// What reading the messages costs is gRPC's own part, and is about half of it.
	own := n - testing.AllocsPerRun(50, func() {
		p.in = messages
		var m extprocv3.ProcessingRequest
		for p.RecvMsg(&m) == nil {
		}
	})
	t.Logf("%.0f allocations per request, %.0f beside reading its messages", n, own)
	if own > 80 {
		t.Errorf("%.0f allocations per request beside reading its messages, want at most 80", own)
	}
}

// thrown is played whose answers nobody looks at.
type thrown struct{ played }

func (*thrown) Send(*extprocv3.ProcessingResponse) error { return nil }
