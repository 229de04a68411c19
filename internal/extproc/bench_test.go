package extproc

import (
	"context"
	"fmt"
	"net"
	"os"
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

// BenchmarkRound is one request, headers and body there and back, over loopback.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		messages := roundOf(n)
		r := newRig(b, endpoints(2), quiet)
		plain := grpc.NewServer(grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow))
		extprocv3.RegisterExternalProcessorServer(plain, trivial{})
		b.Cleanup(plain.Stop)
		for _, who := range []struct {
			name   string
			client extprocv3.ExternalProcessorClient
		}{{"pointsman", dialLoopback(b, r.server.Serve)}, {"trivial", dialLoopback(b, plain.Serve)}} {
			b.Run(fmt.Sprintf("%s/%d", who.name, n), func(b *testing.B) {
				b.ReportAllocs()
				took := make([]time.Duration, 0, b.N)
				for b.Loop() {
					begun := time.Now()
					if err := round(who.client, messages); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(begun))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			})
			b.Run(fmt.Sprintf("%s/%d/8-streams", who.name, n), func(b *testing.B) {
				var wg sync.WaitGroup
				jobs := make(chan struct{}, b.N)
				for range b.N {
					jobs <- struct{}{}
				}
				close(jobs)
				begun, used := time.Now(), processorTime()
				for range 8 {
					wg.Go(func() {
						for range jobs {
							if err := round(who.client, messages); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/time.Since(begun).Seconds(), "rps")
				b.ReportMetric(float64((processorTime()-used).Microseconds())/float64(b.N), "cpu-µs") // of client and server; holds on a busy machine
			})
		}
	}
	b.Logf("resident %d MB, client and both servers together", residentMB())
}

// processorTime is what the process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func quiet(c *Config) { c.Access = nil }

// residentMB is the process's resident memory.
func residentMB() int {
	raw, _ := os.ReadFile("/proc/self/statm")
	var total, resident int
	_, _ = fmt.Sscan(string(raw), &total, &resident)
	return resident * os.Getpagesize() / 1e6
}

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
