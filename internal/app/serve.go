package app

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"syscall"
	"time"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/proxy"
)

// urls collects a flag that may be given several times.
type urls []string

func (u *urls) String() string     { return fmt.Sprint([]string(*u)) }
func (u *urls) Set(s string) error { *u = append(*u, s); return nil }

// Serve runs the gateway until SIGTERM or SIGINT, and loads the configuration again at SIGHUP or when its file changed.
func Serve(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f config.Flags
	fs := flag.NewFlagSet("pointsman serve", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&f.Config, "config", "", "configuration `file`; without one, --endpoint says all that is needed")
	fs.Var((*urls)(&f.Endpoints), "endpoint", "`URL` of a model server, http://host:port; repeat it for each")
	fs.StringVar(&f.Listen, "listen", "", "`address` of the API (default 0.0.0.0:8080)")
	fs.StringVar(&f.Admin, "admin", "", "`address` of the dashboard, /metrics, /healthz and /readyz (default 127.0.0.1:9090)")
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), `Usage: pointsman serve [--config FILE] [--endpoint URL]... [--listen ADDR] [--admin ADDR]

Runs the gateway. Two vLLM servers need nothing but their addresses:

  pointsman serve --endpoint http://10.0.0.3:8000 --endpoint http://10.0.0.4:8000

The file is loaded again when it changes and at SIGHUP; a broken one is refused and the old one stays in force.
SIGTERM goes on accepting requests for drain_delay, finishes what is in flight, for at most drain, and cuts the rest with
an error event; a second one cuts at once.

Flags:
`)
		fs.PrintDefaults()
	}
	if code, done := command.Parse(fs, args, stdout); done {
		return code
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "pointsman serve: unexpected argument %q (endpoints are given with --endpoint)\n", fs.Arg(0))
		return 2
	}
	seen, _ := os.ReadFile(f.Config) // before it is loaded: what is written meanwhile is a change
	cfg, err := config.FromFlags(f)
	if err != nil {
		fmt.Fprintf(stderr, "%v\n", err)
		return 1
	}
	log, level := newLog(cfg, stderr)
	for _, w := range cfg.Warnings {
		log.Warn("configuration warning", "warning", w.Error())
	}
	return runServe(ctx, f, cfg, seen, log, level)
}

// newLog makes the logger of the configuration; its level can change at a reload.
func newLog(cfg *config.Config, w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(cfg.Log.Level)
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(w, opts)), level
	}
	return slog.New(slog.NewTextHandler(w, opts)), level
}

func runServe(ctx context.Context, f config.Flags, cfg *config.Config, seen []byte, log *slog.Logger, level *slog.LevelVar) int {
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	g, err := Start(ctx, cfg, log)
	if err != nil {
		log.Error("start refused", "err", err.Error())
		return 1
	}
	beside.Go(func() { keepAwake(ctx) })
	beside.Go(func() { g.giveBack(ctx) })
	changed := watch(ctx, cfg.Path, seen, time.Second)
	for {
		select {
		case <-ctx.Done():
			g.Close()
			return 0
		case err := <-g.Failed():
			log.Error("listener ended", "err", err.Error())
			g.Close()
			return 1
		case <-changed:
			g.reload(f, "the file changed", level)
		case s := <-signals:
			if s == syscall.SIGHUP {
				g.reload(f, "SIGHUP", level)
				continue
			}
			return drain(ctx, g, s, signals)
		}
	}
}

// reload loads the configuration again; a broken one changes nothing.
func (g *Gateway) reload(f config.Flags, why string, level *slog.LevelVar) {
	cfg, err := config.FromFlags(f)
	if err != nil {
		g.log.Error("reload refused, the configuration before it stays", "why", why, "err", err.Error())
		return
	}
	for _, w := range cfg.Warnings {
		g.log.Warn("configuration warning", "warning", w.Error())
	}
	level.Set(cfg.Log.Level)
	g.Reload(cfg)
	g.log.Info("configuration reloaded", "why", why, "pools", len(cfg.Pools))
}

// Reload puts a configuration in force while requests run. Listener addresses need a restart: a change of them is logged.
func (g *Gateway) Reload(cfg *config.Config) {
	g.mu.Lock()
	before := g.cfg
	g.mu.Unlock()
	moved := cfg.Listen != before.Listen || cfg.Admin != before.Admin || !reflect.DeepEqual(cfg.TLS, before.TLS)
	format := cfg.Log.Format != before.Log.Format
	if moved {
		g.log.Warn("listen, admin and the names of TLS files change with a restart only", "listen", cfg.Listen, "admin", cfg.Admin)
	}
	if !reflect.DeepEqual(cfg.Peers, before.Peers) {
		g.log.Warn("the keys of peers change with a restart only")
	}
	if extprocMoved(cfg.ExtProc, before.ExtProc) {
		g.log.Warn("extproc.listen and extproc.tls change with a restart only")
	}
	if format {
		g.log.Warn("log.format changes with a restart only", "format", cfg.Log.Format.String())
	}
	g.apply(cfg)
	if g.processor != nil && cfg.ExtProc != nil {
		g.processor.Configure(g.extprocConfig(cfg))
	}
	next := proxyConfig(cfg, g)
	next.Previous = g.proxy.Load()
	g.proxy.Store(proxy.New(next))
}

// drain ends the gateway in order. Another signal makes it cut what is left. Ctrl-C does not wait for anybody to look at
// /readyz.
func drain(ctx context.Context, g *Gateway, s os.Signal, signals <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.mu.Lock()
	delay, patience := g.cfg.DrainDelay, g.cfg.Drain
	g.mu.Unlock()
	if s == os.Interrupt {
		delay = 0
	}
	g.log.Info("draining", slog.String("signal", s.String()), g.inFlight(), slog.String("drain_delay", delay.String()), slog.String("drain", patience.String()))
	go func() {
		for {
			select {
			case again := <-signals:
				if again == syscall.SIGHUP {
					continue
				}
				g.log.Warn("cutting what is in flight", slog.String("signal", again.String()), g.inFlight())
				cancel()
			case <-ctx.Done():
			}
			return
		}
	}()
	if cut := g.Drain(ctx, delay, patience); cut > 0 {
		g.log.Warn("drained, some requests were cut", "cut", cut)
	} else {
		g.log.Info("drained")
	}
	return 0
}

// watch says when the file at path has changed from what was seen of it last, by looking every so often: a ConfigMap is swapped by a symbolic link,
// which change notifications of the file itself miss. An empty path never changes.
func watch(ctx context.Context, path string, last []byte, every time.Duration) <-chan struct{} {
	changed := make(chan struct{}, 1)
	if path == "" {
		return changed
	}
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now, err := os.ReadFile(path); err == nil && string(now) != string(last) {
				last = now
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
	}()
	return changed
}
