package proxy

import (
	"net"
	"syscall"
	"unsafe"
)

// sendQueue asks the kernel for the bytes that were written to a TCP connection and not yet acknowledged by the peer
// (SIOCOUTQ). It works after a reset too; the counters outlive the connection.
func sendQueue(c net.Conn) (int64, bool) {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return 0, false
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return 0, false
	}
	var n int32
	done := false
	err = raw.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n)))
		done = errno == 0
	})
	return int64(n), err == nil && done
}
