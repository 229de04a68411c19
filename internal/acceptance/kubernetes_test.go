package acceptance

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/testkit/kubetest"
)

// aibrixModel is a model as AIBrix has it, whose pods podIn makes.
const aibrixModel = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: vllm
  namespace: default
  labels: {model.aibrix.ai/name: m, model.aibrix.ai/port: "8000"}
spec:
  selector: {matchLabels: {model.aibrix.ai/name: m}}
  template:
    metadata:
      labels: {model.aibrix.ai/name: m, model.aibrix.ai/port: "8000"}
    spec:
      containers: [{name: vllm, image: vllm, command: [/bin/sh, -c, "exec vllm serve m --max-num-seqs=\"48\""]}]
`

// imported is what pointsman import makes of a file, from the pool's name on.
func imported(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "deployment.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, list bytes.Buffer
	if code := app.Import(t.Context(), []string{file}, &out, &list); code != 0 || list.Len() > 0 {
		t.Fatalf("%d %s", code, list.String())
	}
	_, pool, ok := strings.Cut(out.String(), "pools:\n  - name: m\n    ")
	if !ok {
		t.Fatalf("there is no pool of the model:\n%s", out.String())
	}
	return pool
}

// A model of AIBrix, whose Deployment the API server takes, is imported: the gateway finds its pods on that server. Those that become Ready
// serve, one that ends serves no more, and requests go on while the API server is away.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	if err := s.Apply(aibrixModel, true); err != nil {
		t.Fatal(err)
	}
	_, urls := simFleet(t, 2, simConfig())
	g := gateway(t, imported(t, aibrixModel), "", "kubernetes: {kubeconfig: "+s.Kubeconfig(kubetest.AdminToken, "default")+"}\n")
	served := func(want ...string) {
		t.Helper()
		eventually(t, patience, func() string {
			found := map[string]bool{}
			for _, e := range status(t, g).Endpoints {
				if e.State == "ready" || e.State == "warming" {
					found[e.Name] = true
				}
			}
			for _, name := range want {
				if !found[name] {
					return fmt.Sprintf("the endpoints are %v, want %v", found, want)
				}
			}
			if len(found) != len(want) {
				return fmt.Sprintf("the endpoints are %v, want %v", found, want)
			}
			return ""
		})
	}
	names := make([]string, len(urls))
	for i, u := range urls {
		names[i] = u[len("http://"):]
		_, port, _ := net.SplitHostPort(names[i])
		pod(t, s, fmt.Sprintf("vllm-%d", i), port)
	}
	served(names...)
	for _, e := range status(t, g).Endpoints {
		if e.MaxNumSeqs != 48 {
			t.Errorf("%s takes %d requests at once, want those of the Deployment", e.Name, e.MaxNumSeqs)
		}
	}
	c := client(t, 4)
	ask := func(n int) map[string]int {
		t.Helper()
		answers := make([]answer, n)
		parallel(n, 4, func(i int) {
			answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 50)}}, 4))
		})
		mustOK(t, answers)
		return counts(answers)
	}
	if got := ask(20); len(got) != 2 {
		t.Errorf("the requests went to %v, want both pods", got)
	}
	s.Stop()
	time.Sleep(time.Second) // the watches end
	if got := ask(20); len(got) != 2 {
		t.Errorf("without an API server the requests went to %v, want both pods", got)
	}
	s.Resume()
	kubernetesDo(t, s, http.MethodDelete, "/api/v1/namespaces/default/pods/vllm-0", "", `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":30}`)
	served(names[1])
	if got := ask(20); got[names[1]] != 20 {
		t.Errorf("the requests went to %v, want %s", got, names[1])
	}
}

// pod makes a Ready pod of this machine in the default namespace, as on the network of its host, whose model server
// listens on port.
func pod(t *testing.T, s *kubetest.Server, name, port string) {
	t.Helper()
	podIn(t, s, "default", name, port)
}

func podIn(t *testing.T, s *kubetest.Server, namespace, name, port string) {
	t.Helper()
	if err := s.Apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {model.aibrix.ai/name: m, model.aibrix.ai/port: %q}
spec:
  nodeName: node-1
  hostNetwork: true
  containers: [{name: vllm, image: vllm, args: [--max-num-seqs=64]}]
`, name, namespace, port), false); err != nil {
		t.Fatal(err)
	}
	kubernetesDo(t, s, http.MethodPatch, "/api/v1/namespaces/"+namespace+"/pods/"+name+"/status", "application/merge-patch+json",
		`{"status":{"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}],"conditions":[{"type":"Ready","status":"True"}]}}`)
}

// kubernetesDo sends a request that must succeed.
func kubernetesDo(t *testing.T, s *kubetest.Server, method, path, contentType, body string) {
	t.Helper()
	status, answer, err := s.Do(method, path, contentType, []byte(body))
	if err != nil || status >= 300 {
		t.Fatalf("%s %s: %d %v %s", method, path, status, err, answer)
	}
}

// A reload that changes how the API server is reached, or where to look in it, takes effect: another context, a kubeconfig
// that was written anew, another namespace. What serves goes on until the new server has said what there is.
func TestKubernetesReload(t *testing.T) {
	t.Parallel()
	a, b := kubetest.Start(t), kubetest.Start(t)
	_, urls := simFleet(t, 3, simConfig())
	names := make([]string, len(urls))
	ports := make([]string, len(urls))
	for i, u := range urls {
		names[i] = u[len("http://"):]
		_, ports[i], _ = net.SplitHostPort(names[i])
	}
	pod(t, a, "vllm", ports[0])
	pod(t, b, "vllm", ports[1])
	const other = "/api/v1/namespaces/other"
	kubernetesDo(t, b, http.MethodPost, "/api/v1/namespaces", "", `{"metadata":{"name":"other"}}`)
	podIn(t, b, "other", "vllm", ports[2])

	file := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(servers map[string]*kubetest.Server) {
		t.Helper()
		var clusters, contexts []string
		for name, s := range servers {
			clusters = append(clusters, fmt.Sprintf("{name: %s, cluster: {server: %q, certificate-authority: %q}}", name, s.URL, s.CAFile))
			contexts = append(contexts, fmt.Sprintf("{name: %s, context: {cluster: %s, user: admin}}", name, name))
		}
		text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [%s]\ncontexts: [%s]\nusers: [{name: admin, user: {token: %s}}]\n",
			strings.Join(clusters, ", "), strings.Join(contexts, ", "), kubetest.AdminToken)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(map[string]*kubetest.Server{"a": a, "b": b})
	g := gateway(t, "kubernetes: {aibrix: m}", "", "kubernetes: {kubeconfig: "+file+"}\n")
	serves := func(name string) {
		t.Helper()
		eventually(t, patience, func() string {
			s := status(t, g)
			if len(s.Endpoints) != 1 || s.Endpoints[0].Name != name || s.Source != "" {
				return fmt.Sprintf("the endpoints are %v (%s), want %s", s.Endpoints, s.Source, name)
			}
			return ""
		})
	}
	reload := func(source, access string) {
		t.Helper()
		cfg, err := config.Parse("pointsman.yaml", []byte("kubernetes: "+access+"\npools: [{name: chat, kubernetes: "+source+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		g.Reload(cfg)
		if n := len(status(t, g).Endpoints); n != 1 {
			t.Errorf("%d endpoints in the moment of the reload, want the one from before", n)
		}
	}
	serves(names[0])
	reload("{aibrix: m}", "{kubeconfig: "+file+", context: b}")
	serves(names[1])
	write(map[string]*kubetest.Server{"a": b, "b": a})
	reload("{aibrix: m}", "{kubeconfig: "+file+", context: b}")
	serves(names[0])
	reload("{aibrix: m}", "{kubeconfig: "+file+"}")
	serves(names[1])
	reload("{aibrix: m, namespace: other}", "{kubeconfig: "+file+"}")
	serves(names[2])

	// A way that leads nowhere takes nothing away, and is said.
	reload("{aibrix: m, namespace: other}", "{kubeconfig: "+file+".absent}")
	eventually(t, patience, func() string {
		if s := status(t, g); !strings.Contains(s.Source, "absent") || len(s.Endpoints) != 1 {
			return fmt.Sprintf("%d endpoints, and what is wrong is %q", len(s.Endpoints), s.Source)
		}
		return ""
	})
	reload("{aibrix: m, namespace: other}", "{kubeconfig: "+file+"}")
	serves(names[2])
	kubernetesDo(t, b, http.MethodDelete, other+"/pods/vllm", "", `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`)
	eventually(t, patience, func() string {
		if n := len(status(t, g).Endpoints); n > 0 {
			return fmt.Sprintf("%d endpoints after the only pod was deleted", n)
		}
		return ""
	})
}
