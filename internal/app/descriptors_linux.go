package app

import (
	"errors"
	"os"
	"syscall"
)

// descriptors is how many file descriptors are open and how many may be; 0 where that cannot be told. When there is none left to count
// with, all are open.
func descriptors() (open, most int) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0
	}
	most = int(min(limit.Cur, 1<<30))
	dir, err := os.Open("/proc/self/fd")
	if errors.Is(err, syscall.EMFILE) {
		return most, most
	}
	if err != nil {
		return 0, 0
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, 0
	}
	return len(names) - 1, most
}
