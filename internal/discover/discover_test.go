package discover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/discover/discovertest"
)

// lines is a Decode for tests: one URL per line; a line with "!" is broken.
func lines(name string, data []byte) ([]string, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%s: no content", name)
	}
	if bytes.Contains(data, []byte("!")) {
		return nil, fmt.Errorf("%s:1:1: broken", name)
	}
	return strings.Fields(string(data)), nil
}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// resolver is a DNS server in memory.
type resolver struct {
	mu    sync.Mutex
	addrs []netip.Addr
	err   error
	calls int
	hang  bool
}

func (r *resolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	hang := r.hang
	r.calls++
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if network != "ip" || host != "vllm.ns.svc" {
		return nil, fmt.Errorf("unexpected look-up of %s %s", network, host)
	}
	// A resolver rotates its answers; the discoverer must not.
	if len(r.addrs) > 1 {
		r.addrs = append(r.addrs[1:len(r.addrs):len(r.addrs)], r.addrs[0])
	}
	return slices.Clone(r.addrs), r.err
}

func (r *resolver) set(addrs []netip.Addr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addrs, r.err = addrs, err
}

func (r *resolver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

func TestStaticConforms(t *testing.T) {
	want := []string{"http://10.0.0.9:8000", "http://10.0.0.1:8000"}
	discovertest.Run(t, func(t *testing.T) discovertest.Source {
		return discovertest.Source{
			New:  func() discover.Discoverer { return discover.Static(discover.Targets(want)) },
			Want: want, Within: time.Second,
		}
	})
}

// fileSource is a file that is written in one of the ways that people and programs write files.
func fileSource(t *testing.T, write func(path, content string)) discovertest.Source {
	path := filepath.Join(t.TempDir(), "endpoints")
	return discovertest.Source{
		New:    func() discover.Discoverer { return discover.NewFile(path, lines, quietLog()) },
		Set:    func(urls []string) { write(path, strings.Join(urls, "\n")+"\n") },
		Break:  func() { write(path, "!") },
		Within: time.Second,
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileConforms(t *testing.T) {
	t.Run("in place", func(t *testing.T) {
		discovertest.Run(t, func(t *testing.T) discovertest.Source {
			return fileSource(t, func(path, content string) { must(t, os.WriteFile(path, []byte(content), 0o600)) })
		})
	})
	t.Run("renamed over", func(t *testing.T) {
		discovertest.Run(t, func(t *testing.T) discovertest.Source {
			return fileSource(t, func(path, content string) {
				must(t, os.WriteFile(path+".new", []byte(content), 0o600))
				must(t, os.Rename(path+".new", path))
			})
		})
	})
	t.Run("removed", func(t *testing.T) {
		discovertest.Run(t, func(t *testing.T) discovertest.Source {
			s := fileSource(t, func(path, content string) {
				if content == "!" {
					must(t, os.Remove(path))
					return
				}
				must(t, os.WriteFile(path, []byte(content), 0o600))
			})
			return s
		})
	})
	t.Run("config map", func(t *testing.T) {
		discovertest.Run(t, func(t *testing.T) discovertest.Source {
			n := 0
			return fileSource(t, func(path, content string) { n++; configMap(t, path, content, n) })
		})
	})
}

// configMap writes as a kubelet does: path -> ..data/endpoints, ..data -> a folder of this version, swapped by a rename; the
// folder before it is deleted.
func configMap(t *testing.T, path, content string, version int) {
	dir := filepath.Dir(path)
	now, before := fmt.Sprintf("..%d", version), fmt.Sprintf("..%d", version-1)
	must(t, os.Mkdir(filepath.Join(dir, now), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, now, "endpoints"), []byte(content), 0o600))
	must(t, os.Symlink(now, filepath.Join(dir, "..tmp")))
	must(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	if version == 1 {
		must(t, os.Symlink("..data/endpoints", path))
	}
	must(t, os.RemoveAll(filepath.Join(dir, before)))
}

// A writer that truncates, pauses and goes on must not be taken at its word while it pauses.
func TestFileTornWriteIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "endpoints")
		must(t, os.WriteFile(path, []byte("http://a:1\nhttp://b:1\n"), 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		up := make(chan []discover.Target, 10)
		go discover.NewFile(path, lines, quietLog()).Run(ctx, up)
		synctest.Wait()
		<-up
		time.Sleep(100 * time.Millisecond) // so that the looks, each 250 ms, fall into the pauses
		for range 20 {
			must(t, os.WriteFile(path, []byte("http://a:1\n"), 0o600))
			time.Sleep(200 * time.Millisecond)
			must(t, os.WriteFile(path, []byte("http://a:1\nhttp://b:1\n"), 0o600))
			time.Sleep(300 * time.Millisecond)
		}
		if n := len(up); n != 0 {
			t.Errorf("%d sets were sent, want none: the first is %v", n, discovertest.URLs(<-up))
		}
	})
}

// A file that is no list, like a pipe, must not hang the discoverer; one that is huge must not fill the memory.
func TestFileRefusesWhatIsNoFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"folder": func(p string) error { return os.Mkdir(p, 0o700) },
		"device": func(p string) error { return os.Symlink("/dev/zero", p) },
		"huge":   func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("http://a:1\n"), 1<<17), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "endpoints")
			must(t, make(path))
			logged := observe(t, discover.NewFile, path, 10*time.Second, nil)
			if n := strings.Count(logged, "endpoints source broken"); n != 1 {
				t.Errorf("%d complaints, want 1:\n%s", n, logged)
			}
		})
	}
}

// observe runs a file discoverer for so long and returns what it logged; during runs after a second.
func observe(t *testing.T, open func(string, discover.Decode, *slog.Logger) *discover.File, path string, d time.Duration, during func()) string {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		up := make(chan []discover.Target, 100)
		go open(path, lines, slog.New(slog.NewTextHandler(&out, nil))).Run(ctx, up)
		time.Sleep(time.Second)
		if during != nil {
			during()
		}
		time.Sleep(d)
		cancel()
		synctest.Wait()
	})
	return out.String()
}

func TestFileLogsThrottled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "endpoints")
	must(t, os.WriteFile(path, []byte("http://a:1\n"), 0o600))
	logged := observe(t, discover.NewFile, path, 5*time.Second, func() {
		must(t, os.WriteFile(path, []byte("!"), 0o600))
		time.Sleep(150*time.Second + 700*time.Millisecond)
		must(t, os.WriteFile(path, []byte("http://a:1\nhttp://b:1\n"), 0o600))
	})
	// At once, after one minute and after two, then the recovery.
	if n := strings.Count(logged, `msg="endpoints source broken, the last good set stays"`); n != 3 {
		t.Errorf("%d complaints in 150 s, want 3:\n%s", n, logged)
	}
	if n := strings.Count(logged, `msg="endpoints source whole again"`); n != 1 {
		t.Errorf("%d recoveries, want 1:\n%s", n, logged)
	}
	for _, want := range []string{"file=" + path, "endpoints=1", "suppressed=239", "broken_for=2m30", ":1:1: broken"} {
		if !strings.Contains(logged, want) {
			t.Errorf("the log does not say %q:\n%s", want, logged)
		}
	}
}

func TestDNSConforms(t *testing.T) {
	discovertest.Run(t, func(t *testing.T) discovertest.Source {
		r := &resolver{}
		return discovertest.Source{
			New: func() discover.Discoverer { return discover.NewDNS("vllm.ns.svc:8000", r, quietLog()) },
			Set: func(urls []string) {
				addrs := make([]netip.Addr, len(urls))
				for i, raw := range urls {
					u, err := url.Parse(raw)
					must(t, err)
					addrs[i] = netip.MustParseAddr(u.Hostname())
				}
				r.set(addrs, nil)
			},
			Break:  func() { r.set(nil, &net.DNSError{Err: "no such host", Name: "vllm.ns.svc", IsNotFound: true}) },
			Within: 6 * time.Second,
		}
	})
}

func TestDNSAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		addrs []string
		want  []string
	}{
		{"sorted, IPv4 first", []string{"fd00::2", "10.0.0.2", "10.0.0.10", "fd00::1"},
			[]string{"http://10.0.0.2:8000", "http://10.0.0.10:8000", "http://[fd00::1]:8000", "http://[fd00::2]:8000"}},
		{"mapped addresses are their IPv4", []string{"::ffff:10.0.0.2", "10.0.0.2"}, []string{"http://10.0.0.2:8000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &resolver{}
				for _, a := range c.addrs {
					r.addrs = append(r.addrs, netip.MustParseAddr(a))
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				up := make(chan []discover.Target, 10)
				go discover.NewDNS("vllm.ns.svc:8000", r, quietLog()).Run(ctx, up)
				time.Sleep(time.Minute)
				if got := discovertest.URLs(<-up); !slices.Equal(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
				if len(up) > 0 {
					t.Errorf("a rotated answer was sent as a new set: %v", discovertest.URLs(<-up))
				}
				if n := r.count(); n < 11 || n > 13 {
					t.Errorf("%d look-ups in a minute, want one each 5 s", n)
				}
			})
		})
	}
}

// An empty answer is a failure; a look-up that hangs ends; before there is a set the name is tried every second.
func TestDNSFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &resolver{}
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		up := make(chan []discover.Target, 10)
		go discover.NewDNS("vllm.ns.svc:8000", r, slog.New(slog.NewTextHandler(&out, nil))).Run(ctx, up)
		time.Sleep(10*time.Second + time.Millisecond)
		if n := r.count(); n != 11 {
			t.Errorf("%d look-ups in 10 s without any set, want 11", n)
		}
		r.set(nil, errors.New("read udp 10.0.0.2:40001->10.0.0.53:53: i/o timeout"))
		time.Sleep(5 * time.Second)
		r.set([]netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil)
		time.Sleep(2 * time.Second)
		if len(up) != 1 {
			t.Fatalf("%d sets, want 1", len(up))
		}
		r.mu.Lock()
		r.hang = true
		r.mu.Unlock()
		time.Sleep(6 * time.Second)
		r.mu.Lock()
		r.hang = false
		r.mu.Unlock()
		time.Sleep(10 * time.Second)
		cancel()
		synctest.Wait()
		// no address, then another reason at once, and again after it was whole
		if n := strings.Count(out.String(), "endpoints source broken"); n != 3 {
			t.Errorf("%d complaints for three reasons, want 3:\n%s", n, out.String())
		}
		if !strings.Contains(out.String(), "resolving vllm.ns.svc: no addresses") {
			t.Errorf("the log does not say why:\n%s", out.String())
		}
	})
}

func TestTargetsDropsDuplicates(t *testing.T) {
	got := discover.Targets([]string{"http://a:1", "http://b:1", "http://a:1"})
	if want := []string{"http://a:1", "http://b:1"}; !slices.Equal(discovertest.URLs(got), want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
