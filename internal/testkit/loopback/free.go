package loopback

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

var (
	given   = map[int]bool{} // ports that this process has handed out
	givenMu sync.Mutex
)

// Free returns an address, "127.0.0.1:PORT", that nobody listens on: for a server that has to know its port before it starts, or for
// an endpoint that is to refuse connections. The port lies below those that systems give to outgoing connections and to port 0 (from
// 32768 on Linux, from 49152 elsewhere), so that no other test takes it in between by accident.
func Free(t testing.TB) string {
	t.Helper()
	givenMu.Lock()
	defer givenMu.Unlock()
	for range 1000 {
		port := 10240 + rand.IntN(32768-10240)
		if given[port] {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		given[port] = true
		return ln.Addr().String()
	}
	t.Fatal("no free port on loopback")
	return ""
}
