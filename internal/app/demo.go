package app

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/vllmsim"
)

// Demo runs the gateway in front of simulated model servers, with load, and prints where to look. Everything is in this
// one process and on loopback; it ends after --duration or at Ctrl-C.
func Demo(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("pointsman demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	duration := fs.Duration("duration", 0, "end after this `time`, like 20s; 0 runs until Ctrl-C")
	endpoints := fs.Int("endpoints", 4, "`number` of simulated model servers, 1 to 32")
	chats := fs.Int("chats", 24, "`number` of conversations at a time, 0 to 1000; 0 leaves the load to you")
	listen := fs.String("listen", "127.0.0.1:8080", "`address` of the API; a free port is taken if this one is in use")
	adminAddr := fs.String("admin", "127.0.0.1:9090", "`address` of the page and the metrics; a free port is taken if this one is in use")
	accessLog := fs.String("access-log", "", "write access records to this `file`, for pointsman sim run")
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), "Usage: pointsman demo [flags]\n\nGateway, simulated vLLM servers, load and a page to look at. Nothing needs to be installed.\n\nFlags:\n")
		fs.PrintDefaults()
	}
	if code, done := command.Parse(fs, args, stdout); done {
		return code
	}
	if wrong := demoFault(*endpoints, *chats, *duration, fs.Args()); wrong != "" {
		fmt.Fprintf(stderr, "pointsman demo: %s\n", wrong)
		return 2
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	if err := runDemo(ctx, stdout, *endpoints, *chats, *listen, *adminAddr, *accessLog); err != nil {
		fmt.Fprintf(stderr, "pointsman demo: %v\n", err)
		return 1
	}
	return 0
}

// demoFault says what is wrong with the flags of the demo; "" nothing.
func demoFault(endpoints, chats int, duration time.Duration, rest []string) string {
	switch {
	case endpoints < 1 || endpoints > 32:
		return fmt.Sprintf("--endpoints %d: want 1 to 32", endpoints)
	case chats < 0 || chats > 1000:
		return fmt.Sprintf("--chats %d: want 0 to 1000", chats)
	case duration < 0:
		return fmt.Sprintf("--duration %v: must not be negative", duration)
	case len(rest) > 0:
		return fmt.Sprintf("unexpected argument %q", rest[0])
	}
	return ""
}

func runDemo(ctx context.Context, stdout io.Writer, endpoints, chats int, listen, adminAddr, accessLog string) error {
	// The model servers outlive the gateway, so that what is in flight at the end is not cut by them.
	simCtx, endSims := context.WithCancel(context.WithoutCancel(ctx))
	urls, ended, err := startSims(simCtx, endpoints)
	defer ended.Wait()
	defer endSims()
	if err != nil {
		return err
	}
	cfg, err := config.Parse("demo.yaml", demoConfig(urls, freeAddr(listen), freeAddr(adminAddr)))
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if accessLog != "" {
		f, fault := os.Create(accessLog)
		if fault != nil {
			return fmt.Errorf("opening the access log: %w", fault)
		}
		defer f.Close()
		log = slog.New(slog.NewJSONHandler(f, nil))
	}
	g, err := Start(context.WithoutCancel(ctx), cfg, log)
	if err != nil {
		return err
	}
	defer g.Close()
	fmt.Fprintf(stdout, "%d simulated vLLM servers, model %q, %d conversations at a time\n", endpoints, demoModel, chats)
	fmt.Fprintf(stdout, "page      %s/\nAPI       %s/v1\nexplain   pointsman explain --admin %s\nend       Ctrl-C\n", g.Admin(), g.API(), g.Admin())
	load := newDemoLoad(g.API(), demoModel, chats+1)
	if chats > 0 {
		var wg sync.WaitGroup
		wg.Go(func() { load.run(ctx, chats) })
		defer wg.Wait()
	}
	report(ctx, stdout, g, load)
	fmt.Fprintf(stdout, "%d requests, %d clients left on purpose or at the end, %d failed\n", load.requests.Load(), load.cancelled.Load(), load.failed.Load())
	if n := load.failed.Load(); n > 0 {
		return fmt.Errorf("running the load: %d requests failed", n)
	}
	return nil
}

const demoModel = "demo/station-master"

// startSims starts n simulated servers of an H100's speed with a KV memory small enough that prefixes compete for it.
func startSims(ctx context.Context, n int) ([]string, *sync.WaitGroup, error) {
	var urls []string
	ended := &sync.WaitGroup{}
	for range n {
		cfg := vllmsim.DefaultConfig()
		cfg.Model, cfg.Profile, cfg.NumBlocks, cfg.MaxModelLen, cfg.MaxNumSeqs = []string{demoModel}, "llama-3.1-8b-h100", 4001, 32768, 64
		server, err := vllmsim.New(cfg)
		if err != nil {
			return nil, ended, err
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, ended, fmt.Errorf("opening a port for a simulated server: %w", err)
		}
		urls = append(urls, "http://"+ln.Addr().String())
		ended.Go(func() { _ = server.Serve(ctx, ln) }) // it ends with the context, which is no news
	}
	return urls, ended, nil
}

func demoConfig(urls []string, listen, adminAddr string) []byte {
	return fmt.Appendf(nil, "listen: %s\nadmin: %s\nlog: {prefix_hashes: true}\npools:\n  - name: demo\n    endpoints: [%s]\n", listen, adminAddr, strings.Join(urls, ", "))
}

// freeAddr returns addr, or the same host with a free port if addr is taken.
func freeAddr(addr string) string {
	ln, err := net.Listen("tcp", addr)
	if err == nil {
		_ = ln.Close()
		return addr
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr // Start says what is wrong with it
	}
	return net.JoinHostPort(host, "0")
}

// report prints a line every five seconds until ctx ends.
func report(ctx context.Context, stdout io.Writer, g *Gateway, load *demoLoad) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, p := range g.Status() {
			fmt.Fprintf(stdout, "%6d requests  %3d in flight ", load.requests.Load(), p.InFlight)
			if p.PromptTokens > 0 {
				fmt.Fprintf(stdout, " %2.0f %% of prompt tokens were cached", 100*float64(p.ActualHitTokens)/float64(p.PromptTokens))
			}
			fmt.Fprintln(stdout)
		}
	}
}
