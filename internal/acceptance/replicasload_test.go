package acceptance

import (
	"net"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	peerwire "pointsman.dev/pointsman/internal/peers/wire"
)

// strange is a peer that greets with the version that it speaks and takes nothing from then on.
type strange struct {
	peerwire.UnimplementedExchangeServer
	major uint32
}

// Tell implements peerwire.ExchangeServer.
func (s *strange) Tell(stream grpc.BidiStreamingServer[peerwire.Message, peerwire.Answer]) error {
	_ = stream.Send(&peerwire.Answer{Hello: &peerwire.Hello{Major: s.major, Instance: make([]byte, 16), Release: "strange"}})
	<-stream.Context().Done()
	return nil
}

// strangePeer starts one and returns its address.
func strangePeer(t *testing.T, major uint32) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	peerwire.RegisterExchangeServer(s, &strange{major: major})
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	return ln.Addr().String()
}

// steadyLoad sends requests at a rate to some gateways in turn and keeps how long each first token took, by phase.
type steadyLoad struct {
	mu     sync.Mutex
	phase  string
	order  []string
	ttfts  map[string][]time.Duration
	failed map[string]int
	done   chan struct{}
	wg     sync.WaitGroup
}

func newSteadyLoad(t *testing.T, to []*program, every time.Duration) *steadyLoad {
	s := &steadyLoad{ttfts: map[string][]time.Duration{}, failed: map[string]int{}, done: make(chan struct{})}
	c := client(t, 1000)
	s.wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-s.done:
				return
			case <-tick.C:
			}
			s.mu.Lock()
			phase := s.phase
			s.mu.Unlock()
			s.wg.Go(func() {
				o := stream(c, to[i%len(to)].api, []message{{"user", words(i%50, 2000)}}, 5)
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.ttfts[phase] = append(s.ttfts[phase], o.ttft); o.err != nil {
					s.failed[phase]++
				}
			})
		}
	})
	return s
}

// now begins a phase and lets it last.
func (s *steadyLoad) now(phase string, length time.Duration) {
	s.mu.Lock()
	s.phase = phase
	s.order = append(s.order, phase)
	s.mu.Unlock()
	time.Sleep(length)
}

// judge compares each phase with the first one.
func (s *steadyLoad) judge(t *testing.T) {
	t.Helper()
	close(s.done)
	s.wg.Wait()
	quantile := func(phase string, share float64) time.Duration {
		all := s.ttfts[phase]
		slices.Sort(all)
		return all[int(share*float64(len(all)-1))]
	}
	for _, phase := range s.order {
		half, most := quantile(phase, 0.5), quantile(phase, 0.98)
		t.Logf("%-32s %4d requests, %d failed, first token after %v (half), %v (98 of 100)", phase, len(s.ttfts[phase]), s.failed[phase],
			half.Round(time.Millisecond), most.Round(time.Millisecond))
		if s.failed[phase] > 0 {
			t.Errorf("%s: %d requests failed", phase, s.failed[phase])
		}
		if half > quantile(s.order[0], 0.5)+20*time.Millisecond || most > 2*quantile(s.order[0], 0.98)+100*time.Millisecond {
			t.Errorf("%s: requests are delayed", phase)
		}
	}
}

// TestReplicasThatFailUnderLoad: while one of three gateways is stopped, goes on, is killed and starts again, and two more peers take nothing
// or speak another version, requests at the others are neither delayed nor failed, what the lost one had in flight is forgotten, and
// nothing piles up for those that take nothing.
func TestReplicasThatFailUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	cfg := simConfig()
	cfg.Speed = 1
	_, urls := simFleet(t, 4, cfg)
	all := replicas(t, bin, 3, true, urls, strangePeer(t, 2))
	mute := replicas(t, bin, 1, true, urls, strangePeer(t, 1)) // its only peer takes nothing
	c := client(t, 100)
	const long = 40
	for i := range long { // answers that outlast the test
		go func() { _ = stream(c, all[2].api, []message{{"user", words(1000+i, 2000)}}, 4000) }()
	}
	theirs := func(what string, holds func(n int) bool) {
		t.Helper()
		eventually(t, patience, func() string {
			for _, p := range all[:2] {
				if n := p.pools(t)[0].Peers; !holds(n) {
					return what + ": requests of peers are not what they should be"
				}
			}
			return ""
		})
	}
	theirs("all are told", func(n int) bool { return n >= long })
	load := newSteadyLoad(t, []*program{all[0], all[1], mute[0]}, 15*time.Millisecond)
	load.now("warm-up", time.Second)
	load.order = nil
	load.now("all three live", 4*time.Second)
	before := [2]int64{memory(t, all[0].cmd.Process.Pid, "VmRSS"), memory(t, mute[0].cmd.Process.Pid, "VmRSS")}
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := all[2].cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	load.now("one is stopped", 9*time.Second)
	theirs("the stopped one is forgotten", func(n int) bool { return n < long })
	signal(syscall.SIGCONT)
	load.now("it goes on", 2*time.Second)
	theirs("it is back", func(n int) bool { return n >= long })
	signal(syscall.SIGKILL)
	_ = all[2].cmd.Wait()
	load.now("it is dead", 4*time.Second)
	theirs("the dead one is forgotten", func(n int) bool { return n < long })
	all[2] = all[2].again(t, bin)
	load.now("it starts again", 2*time.Second)
	load.judge(t)
	all[2].connected(t, 2)
	theirs("nothing is in flight", func(n int) bool { return n == 0 })
	for i, p := range []*program{all[0], mute[0]} {
		if grown := memory(t, p.cmd.Process.Pid, "VmRSS") - before[i]; grown > 16<<20 {
			t.Errorf("%d MB more are in use by gateway %d than before a peer was lost", grown>>20, i)
		}
	}
	if n := all[0].says("peer is not told of picks", "speaks version 2"); n != 1 || gauge(t, all[0], `pointsman_peers{state="incompatible"}`) != 1 {
		t.Errorf("that a peer speaks another version is said %d times", n)
	}
	if n := mute[0].says("peer is not told of picks", "confirmed nothing for 5 s"); n < 1 || n > 3 {
		t.Errorf("that a peer takes nothing is said %d times", n)
	}
}
