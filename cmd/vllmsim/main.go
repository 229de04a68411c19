// Command vllmsim is a simulated vLLM server: see vllmsim --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"pointsman.dev/pointsman/internal/vllmsim"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	terminate := make(chan struct{})
	go func() {
		for range signals {
			terminate <- struct{}{}
		}
	}()
	os.Exit(vllmsim.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr, terminate))
}
