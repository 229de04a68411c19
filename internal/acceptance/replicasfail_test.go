package acceptance

import (
	"fmt"
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

// steadyLoad sends requests at a rate to some gateways, each in its turn, and keeps how long each first token took, by phase and gateway.
type steadyLoad struct {
	mu     sync.Mutex
	names  []string // of the gateways; the first one is what the others are compared with
	phase  string
	order  []string
	ttfts  map[string]map[string][]time.Duration
	failed map[string]int
	done   chan struct{}
	wg     sync.WaitGroup
}

func newSteadyLoad(t *testing.T, names []string, to []*program, every time.Duration) *steadyLoad {
	s := &steadyLoad{names: names, ttfts: map[string]map[string][]time.Duration{}, failed: map[string]int{}, done: make(chan struct{})}
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
				o := stream(c, to[i%len(to)].api, []message{{"user", words(i/len(to)%50, 2000)}}, 5)
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.ttfts[phase] == nil {
					s.ttfts[phase] = map[string][]time.Duration{}
				}
				name := names[i%len(to)]
				if s.ttfts[phase][name] = append(s.ttfts[phase][name], o.ttft); o.err != nil {
					s.failed[phase]++
				}
			})
		}
	})
	return s
}

// now begins a phase.
func (s *steadyLoad) now(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = phase
	s.order = append(s.order, phase)
}

// enough waits until each gateway has answered so many requests of the phase that percentiles say something.
func (s *steadyLoad) enough(t *testing.T) {
	t.Helper()
	eventually(t, patience, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range s.names {
			if n := len(s.ttfts[s.phase][name]); n < 60 {
				return fmt.Sprintf("%s: %d requests to %s", s.phase, n, name)
			}
		}
		return ""
	})
}

// judge compares the gateways within each phase: what a busy machine does, it does to all of them.
func (s *steadyLoad) judge(t *testing.T) {
	t.Helper()
	close(s.done)
	s.wg.Wait()
	for _, phase := range s.order {
		var alone [2]time.Duration
		for i, name := range s.names {
			all := s.ttfts[phase][name]
			slices.Sort(all)
			half, most := all[len(all)/2], all[len(all)*9/10]
			t.Logf("%-16s %-24s %4d requests, first token after %v (half), %v (9 of 10)", phase, name, len(all), half.Round(time.Millisecond), most.Round(time.Millisecond))
			if i == 0 {
				alone = [2]time.Duration{half, most}
			} else if half > 2*alone[0]+20*time.Millisecond || most > 2*alone[1]+100*time.Millisecond {
				t.Errorf("%s: requests at %s are delayed", phase, name)
			}
		}
		if s.failed[phase] > 0 {
			t.Errorf("%s: %d requests failed", phase, s.failed[phase])
		}
	}
}

// TestReplicasThatFail: while one of three gateways is stopped, goes on, is killed and starts again, and two more peers take nothing
// or speak another version, requests at the others are neither delayed, against a gateway without peers, nor failed; what the lost one
// had in flight is forgotten, and known again when it is back; nothing piles up for those that take nothing; one that starts again believes
// what the others believe; and in the end all books are empty.
func TestReplicasThatFail(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	cfg := simConfig()
	cfg.Speed = 1
	_, urls := simFleet(t, 4, cfg)
	alone := replicas(t, bin, 1, false, urls)[0]
	all := replicas(t, bin, 3, true, urls, strangePeer(t, 2))
	mute := replicas(t, bin, 1, true, urls, strangePeer(t, 1))[0] // its only peer takes nothing
	c := client(t, 100)
	const long = 40
	for i := range long { // answers that outlast the test
		go func() { _ = stream(c, all[2].api, []message{{"user", words(1000+i, 2000)}}, 8000) }()
	}
	theirs := func(what string, holds func(n int) bool) {
		t.Helper()
		eventually(t, patience, func() string {
			for _, p := range all[:2] {
				if n := p.pools(t)[0].Peers; !holds(n) {
					return fmt.Sprintf("%s: %d requests of peers", what, n)
				}
			}
			return ""
		})
	}
	theirs("all are told", func(n int) bool { return n == long })
	load := newSteadyLoad(t, []string{"without peers", "first", "second", "its peer takes nothing"}, []*program{alone, all[0], all[1], mute}, 12*time.Millisecond)
	load.now("all three live")
	load.enough(t)
	before := [2]int64{memory(t, all[0].cmd.Process.Pid, "VmRSS"), memory(t, mute.cmd.Process.Pid, "VmRSS")}
	signal(t, all[2], syscall.SIGSTOP)
	load.now("one is stopped")
	load.enough(t)
	theirs("the stopped one is forgotten", func(n int) bool { return n < long })
	signal(t, all[2], syscall.SIGCONT)
	load.now("it goes on")
	load.enough(t)
	theirs("it is back", func(n int) bool { return n >= long })
	signal(t, all[2], syscall.SIGKILL)
	_ = all[2].cmd.Wait()
	load.now("it is dead")
	load.enough(t)
	theirs("the dead one is forgotten", func(n int) bool { return n < long })
	load.now("it starts again")
	all[2] = all[2].again(t, bin)
	load.enough(t)
	load.judge(t)
	all[2].connected(t, 2)
	theirs("nothing is in flight", func(n int) bool { return n == 0 })
	believesTheSame(t, all[2], all[0])
	c = client(t, 100)
	go func() { _ = stream(c, all[2].api, []message{{"user", words(2000, 2000)}}, 8000) }()
	theirs("the one that started again tells of its picks", func(n int) bool { return n == 1 })
	if err := all[2].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	theirs("at the end", func(n int) bool { return n == 0 })
	for i, p := range []*program{all[0], mute} {
		if grown := memory(t, p.cmd.Process.Pid, "VmRSS") - before[i]; grown > 16<<20 {
			t.Errorf("%d MB more are in use by gateway %d than before a peer was lost", grown>>20, i)
		}
	}
	sayLittle(t, all, mute)
}

// believesTheSame waits until a gateway that started again believes that the endpoints hold what another one believes.
func believesTheSame(t *testing.T, again, other *program) {
	t.Helper()
	eventually(t, patience, func() string {
		for i, e := range again.pools(t)[0].Endpoints {
			if was := other.pools(t)[0].Endpoints[i]; e.HeldBlocks != was.HeldBlocks || e.HeldBlocks == 0 {
				return fmt.Sprintf("the one that started again believes that %s holds %d blocks, another %d", e.Name, e.HeldBlocks, was.HeldBlocks)
			}
		}
		return ""
	})
}

// sayLittle: what is wrong with peers is said, and not all the time.
func sayLittle(t *testing.T, all []*program, mute *program) {
	t.Helper()
	for i, p := range all[:2] {
		if n := p.pools(t)[0].InFlight; n != 0 {
			t.Errorf("gateway %d has %d requests in its books", i, n)
		}
		if n := gauge(t, p, "pointsman_peer_refused_total"); n > 4 {
			t.Errorf("gateway %d refused %v messages of its peers", i, n)
		}
		if n := p.says("peer is not told of picks") - p.says("peer is not told of picks", "speaks version 2"); n < 2 || n > 8 {
			t.Errorf("gateway %d said %d times that a peer is lost", i, n)
		}
	}
	if n := all[0].says("peer is not told of picks", "speaks version 2"); n != 1 || gauge(t, all[0], `pointsman_peers{state="incompatible"}`) != 1 {
		t.Errorf("that a peer speaks another version is said %d times", n)
	}
	if n := mute.says("peer is not told of picks", "confirmed nothing for 5 s"); n < 1 || n > 8 {
		t.Errorf("that a peer takes nothing is said %d times", n)
	}
}
