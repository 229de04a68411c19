package loopback

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// Cramped listens with room for hardly a connection that nobody accepts, and fills it: the kernel drops whatever else knocks, so that who
// connects waits. It skips the test on a kernel that takes every connection. The listener is the caller's to close.
func Cramped(t testing.TB) net.Listener {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err = syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	ln, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 200*time.Millisecond)
		if err != nil {
			return ln
		}
		t.Cleanup(func() { _ = c.Close() })
		if i == 16 {
			t.Skip("this kernel takes every connection")
		}
	}
}
