package pool

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
)

// ownWant is what this machine or process may lack for a connection: descriptors, memory of the kernel, ports.
var ownWant = [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL}

// Starved says that err, of an attempt to connect, is about what this side lacks and says nothing of the endpoint. An address that
// can never be reached from here may look the same (EADDRNOTAVAIL), so it must not excuse an endpoint that nothing was ever heard of.
func Starved(err error) bool {
	if err == nil {
		return false
	}
	if slices.ContainsFunc(ownWant[:], func(e syscall.Errno) bool { return errors.Is(err, e) }) {
		return true
	}
	var lookup *net.DNSError // keeps the text of its cause and nothing else
	return errors.As(err, &lookup) && slices.ContainsFunc(ownWant[:], func(e syscall.Errno) bool { return strings.HasSuffix(lookup.Err, e.Error()) })
}
