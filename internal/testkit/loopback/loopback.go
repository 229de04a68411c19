// Package loopback lets a test be a server that keeps no rules: it gets the bare connections.
//
// It is for tests only. Whatever net/http would never send has to be written to a connection by hand.
package loopback

import (
	"net"
	"testing"
)

// Serve calls serve with each connection to a port of its own on loopback, each in a goroutine, until the test ends, and returns the
// port's URL. The connection is serve's to close.
func Serve(t testing.TB, serve func(net.Conn)) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + ln.Addr().String()
}
