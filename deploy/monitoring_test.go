package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// rulesFile writes the spec of the PrometheusRule as the file that Prometheus itself reads.
func rulesFile(t *testing.T, dir string) string {
	t.Helper()
	spec := objects(t, read(t, "monitoring/prometheusrule.yaml"))["PrometheusRule/pointsman"]["spec"]
	data, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The rules are valid, and give the totals and alerts that rules.test.yaml demands.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	run(t, "promtool", "check", "rules", rulesFile(t, dir))
	test := filepath.Join(dir, "rules.test.yaml")
	if err := os.WriteFile(test, []byte(read(t, "monitoring/rules.test.yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "promtool", "test", "rules", test)
	named := regexp.MustCompile(`(?:record|alert): (\S+)`).FindAllStringSubmatch(read(t, "monitoring/prometheusrule.yaml"), -1)
	for _, m := range named {
		if !strings.Contains(read(t, test), m[1]) {
			t.Errorf("%s has no test", m[1])
		}
	}
	if len(named) < 20 {
		t.Errorf("only %d rules and alerts", len(named))
	}
}

// fleet is two replicas of the gateway in front of two simulated model servers, scraped by a real Prometheus.
type fleet struct {
	t          *testing.T
	engines    []string // base URLs
	api        []string // of the replicas
	prometheus string
	client     *http.Client
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	program(t, "prometheus") // skips before anything is built
	dir := t.TempDir()
	for _, name := range []string{"pointsman", "vllmsim"} {
		cmd := exec.Command("go", "build", "-o", dir+"/", "../cmd/"+name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	f := &fleet{t: t, client: &http.Client{Timeout: time.Minute}}
	for range 2 {
		addr := loopback.Free(t)
		f.engines = append(f.engines, "http://"+addr)
		start(t, dir+"/vllmsim", "--listen", addr, "--model", "m", "--profile", "tiny-cpu", "--max-model-len", "32768", "--speed", "0.3") // streams of five minutes
	}
	targets := []string{loopback.Free(t), loopback.Free(t)}
	peers := []string{loopback.Free(t), loopback.Free(t)}
	for i := range 2 {
		api := loopback.Free(t)
		f.api = append(f.api, "http://"+api)
		file := fmt.Sprintf("%s/pointsman%d.yaml", dir, i)
		text := fmt.Sprintf("listen: %q\nadmin: %q\npeers: {listen: %q, list: [%q]}\npools: [{name: chat, endpoints: [%q, %q]}]\n", api, targets[i], peers[i], peers[1-i], f.engines[0], f.engines[1])
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, dir+"/pointsman", "serve", "--config", file)
	}
	at := loopback.Free(t)
	f.prometheus = "http://" + at
	settings := fmt.Sprintf(`global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%s]
scrape_configs:
  - {job_name: pointsman, static_configs: [{targets: [%q, %q], labels: {namespace: models}}]}
`, rulesFile(t, dir), targets[0], targets[1])
	if err := os.WriteFile(dir+"/prometheus.yml", []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, program(t, "prometheus"), "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/tsdb", "--web.listen-address="+at, "--log.level=error")
	for _, u := range []string{"http://" + targets[0] + "/readyz", "http://" + targets[1] + "/readyz", f.prometheus + "/-/ready"} {
		f.until("waiting for "+u, func() string {
			r, err := f.client.Get(u)
			if err != nil {
				return err.Error()
			}
			r.Body.Close()
			if r.StatusCode != http.StatusOK {
				return r.Status
			}
			return ""
		})
	}
	return f
}

// start runs a program until the test ends.
func start(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%.2000s", filepath.Base(program), out.String())
		}
	})
}

// until asks again and again until the answer is "".
func (f *fleet) until(what string, check func() string) {
	f.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		why := check()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: %s", what, why)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// query returns the values of an instant query, NaN left out.
func (f *fleet) query(expr string) ([]float64, error) {
	r, err := f.client.Get(f.prometheus + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	var values []float64
	for _, s := range answer.Data.Result {
		text, _ := s.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return values, nil
}

// becomes waits until a query has that one value.
func (f *fleet) becomes(expr string, want float64) {
	f.t.Helper()
	f.until(expr, func() string {
		got, err := f.query(expr)
		if err != nil {
			return err.Error()
		}
		if len(got) != 1 || math.Abs(got[0]-want) > 1e-9 {
			return fmt.Sprintf("%v, want %v", got, want)
		}
		return ""
	})
}

// hold starts n streams that go on until the context ends, and returns when each has its first byte.
func (f *fleet) hold(ctx context.Context, wg *sync.WaitGroup, base string, n int) {
	f.t.Helper()
	begun := make(chan error, n)
	for i := range n {
		wg.Go(func() {
			body := fmt.Sprintf(`{"model": "m", "prompt": "%s stream %d of many", "max_tokens": 30000, "ignore_eos": true, "stream": true}`, base, i)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", strings.NewReader(body))
			if err != nil {
				begun <- err
				return
			}
			req.Header.Set("Content-Type", "application/json")
			r, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				begun <- err
				return
			}
			defer r.Body.Close()
			_, err = r.Body.Read(make([]byte, 1))
			begun <- err
			io.Copy(io.Discard, r.Body)
		})
	}
	for range n {
		if err := <-begun; err != nil {
			f.t.Fatal(err)
		}
	}
}

// finish sends n short requests to a replica, every other one for a stream, and reads their answers.
func (f *fleet) finish(base string, n int) {
	f.t.Helper()
	for i := range n {
		body := fmt.Sprintf(`{"model": "m", "prompt": "%s %d", "max_tokens": 3, "stream": %t}`, strings.Repeat("the same beginning ", 60), i, i%2 == 1)
		r, err := f.client.Post(base+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			f.t.Fatal(err)
		}
		answer, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			f.t.Fatalf("%s: %s", r.Status, answer)
		}
	}
}

// Two replicas, scraped one by one: what each counted is added up; what both see of the same endpoint counts once; and what
// came past both of them is told from what the other one sent.
func TestTotalsOverReplicas(t *testing.T) {
	f := newFleet(t)
	f.becomes(`sum(up{job="pointsman"})`, 2)
	f.becomes("pointsman:replicas:count", 2)
	f.becomes(`sum(pointsman_peers{state="connected"})`, 2)
	f.becomes(`pointsman:endpoints_ready:count{pool="chat"}`, 2)
	f.finish(f.api[0], 7)
	f.finish(f.api[1], 12)
	f.becomes(`sum(pointsman_requests_total{outcome="ok"})`, 19)
	f.finish(f.api[0], 2) // a rate needs two scrapes
	f.finish(f.api[1], 3)
	f.becomes(`count(pointsman:requests:rate5m{outcome="ok"} > 0)`, 1)

	ctx, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	f.hold(ctx, &wg, f.api[0], 2)
	f.hold(ctx, &wg, f.api[1], 3)
	f.becomes("sum(pointsman:in_flight_requests:sum)", 5)
	f.becomes("pointsman:pool_running:sum + pointsman:pool_waiting:sum", 5) // not 10: both replicas report all of them
	f.becomes("sum(pointsman:endpoint_foreign_requests:diff)", 0)
	f.hold(ctx, &wg, f.engines[0], 1)
	f.becomes("sum(pointsman_endpoint_foreign_requests)", 2) // each replica sees it
	f.becomes("sum(pointsman:endpoint_foreign_requests:diff)", 1)
	f.dashboard()
	f.autoscalers()
}

// autoscalers executes the queries that the examples scale by.
func (f *fleet) autoscalers() {
	f.t.Helper()
	here := strings.NewReplacer("<<.LabelMatchers>>", `namespace="models",pool="chat"`)
	keda := objects(f.t, read(f.t, "autoscaling/keda.yaml"))["ScaledObject/vllm"]
	// running and waiting: five streams through the replicas and one past them
	f.becomes(here.Replace(at(keda, "spec", "triggers", 0, "metadata", "query").(string)), 6)
	f.becomes(here.Replace(at(keda, "spec", "triggers", 1, "metadata", "query").(string)), 0)
	var adapter any
	if err := yaml.Unmarshal([]byte(read(f.t, "autoscaling/prometheus-adapter-values.yaml")), &adapter); err != nil {
		f.t.Fatal(err)
	}
	f.becomes(here.Replace(at(adapter, "rules", "external", 0, "metricsQuery").(string)), 6)
}

// dashboard executes every query of the dashboard: each has data, and so have each of its variables and each recording rule.
func (f *fleet) dashboard() {
	f.t.Helper()
	var board struct {
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(f.t, "monitoring/dashboard.json")), &board); err != nil {
		f.t.Fatal(err)
	}
	filled := strings.NewReplacer("$namespace", ".*", "$pool", ".*")
	n := 0
	check := func(what, expr string) {
		n++
		f.until(what+": "+expr, func() string {
			got, err := f.query(filled.Replace(expr))
			switch {
			case err != nil:
				return err.Error()
			case len(got) == 0:
				return "no data"
			}
			return ""
		})
	}
	for _, v := range board.Templating.List {
		if q, ok := at(v.Query, "query").(string); ok {
			series, label, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(q, "label_values("), ")"), ", ")
			check("variable "+v.Name, "count by ("+label+") ("+series+")")
		}
	}
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(read(f.t, "monitoring/prometheusrule.yaml"), -1) {
		check("rule", m[1])
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			check("panel "+p.Title, target.Expr)
		}
	}
	if n < 40 {
		f.t.Errorf("only %d queries: the dashboard is not read right", n)
	}
}
