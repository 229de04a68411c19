package deploy

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/config"
)

// Whatever names the gateway's pods, or a port of theirs, means them: an API server takes selectors and names that find nothing, too.
func TestWhatLeadsToThePods(t *testing.T) {
	for _, dir := range append(overlays(t), "testdata/monitored") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			all := objects(t, run(t, "kustomize", "build", dir))
			text, _ := at(all["ConfigMap/pointsman"], "data", "pointsman.yaml").(string)
			cfg, err := config.Parse("pointsman.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for name, o := range all {
				n += leads(t, name, o, all["Deployment/pointsman"])
			}
			if n < 8 {
				t.Errorf("only %d selectors were found", n)
			}
			wired(t, all, cfg)
		})
	}
}

// leads checks the selectors and port names of one object, and returns how many selectors it has.
func leads(t *testing.T, name string, o, deployment obj) int {
	t.Helper()
	kind, _, _ := strings.Cut(name, "/")
	var selectors []any
	switch kind {
	case "Service":
		selectors = []any{at(o, "spec", "selector")}
	case "PodDisruptionBudget", "PodMonitor":
		selectors = []any{at(o, "spec", "selector", "matchLabels")}
	case "Deployment":
		selectors = []any{at(o, "spec", "selector", "matchLabels")}
		for i := range at(o, "spec", "template", "spec", "topologySpreadConstraints").([]any) {
			selectors = append(selectors, at(o, "spec", "template", "spec", "topologySpreadConstraints", i, "labelSelector", "matchLabels"))
		}
	case "NetworkPolicy":
		if name == "NetworkPolicy/pointsman" {
			selectors = []any{at(o, "spec", "podSelector", "matchLabels")}
		} else { // the model servers admit the gateway first
			selectors = []any{at(o, "spec", "ingress", 0, "from", 0, "podSelector", "matchLabels")}
		}
	}
	labels, _ := at(deployment, "spec", "template", "metadata", "labels").(obj)
	for _, s := range selectors {
		wanted, _ := s.(obj)
		for key, value := range wanted {
			if labels[key] != value {
				t.Errorf("%s wants pods with %s=%v, those of the gateway have %v", name, key, value, labels[key])
			}
		}
		if len(wanted) == 0 {
			t.Errorf("%s wants every pod", name)
		}
	}
	var ports []any
	for i := range 3 {
		ports = append(ports, at(o, "spec", "ports", i, "targetPort"), at(o, "spec", "podMetricsEndpoints", i, "port"))
	}
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		ports = append(ports, at(o, "spec", "template", "spec", "containers", 0, probe, "httpGet", "port"))
	}
	for _, port := range ports {
		if port != nil && numbered(deployment)[fmt.Sprint(port)] == "" {
			t.Errorf("%s leads to the port %v, which the pods have not", name, port)
		}
	}
	return len(selectors)
}

// numbered is the numbers of the gateway's ports by name.
func numbered(deployment obj) map[string]string {
	found := map[string]string{}
	list, _ := at(deployment, "spec", "template", "spec", "containers", 0, "ports").([]any)
	for _, p := range list {
		found[at(p, "name").(string)] = fmt.Sprint(at(p, "containerPort"))
	}
	return found
}

// wired demands that the pods' ports are those that the gateway listens on and that the network policies open, that replicas find each
// other by a Service, and that an InferencePool is of the model servers that the policy is for.
func wired(t *testing.T, all map[string]obj, cfg *config.Config) {
	t.Helper()
	want := map[string]string{"api": portOf(t, cfg.Listen), "admin": portOf(t, cfg.Admin), "peers": portOf(t, cfg.Peers.Listen)}
	if cfg.ExtProc != nil {
		want["extproc"] = portOf(t, cfg.ExtProc.Listen)
	}
	got := numbered(all["Deployment/pointsman"])
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports (-configuration +pods):\n%s", diff)
	}
	open := map[string]bool{}
	rules, _ := at(all["NetworkPolicy/pointsman"], "spec", "ingress").([]any)
	for _, r := range rules {
		open[fmt.Sprint(at(r, "ports", 0, "port"))] = true
	}
	for name, port := range want {
		if !open[port] {
			t.Errorf("the network policy closes port %s (%s)", port, name)
		}
	}
	host, _, _ := net.SplitHostPort(cfg.Peers.DNS)
	peers := all["Service/"+host]
	if at(peers, "spec", "clusterIP") != "None" || at(peers, "spec", "publishNotReadyAddresses") != true {
		t.Errorf("replicas look for each other at %s, which is no headless Service of pods that are not ready too: %v", host, peers)
	}
	for name, pool := range all {
		if !strings.HasPrefix(name, "InferencePool/") {
			continue
		}
		models := all["NetworkPolicy/pointsman-model-servers"]
		if diff := cmp.Diff(at(pool, "spec", "selector", "matchLabels"), at(models, "spec", "podSelector", "matchLabels")); diff != "" {
			t.Errorf("the model servers (-InferencePool +network policy):\n%s", diff)
		}
		if at(pool, "spec", "targetPorts", 0, "number") != at(models, "spec", "ingress", 0, "ports", 0, "port") {
			t.Error("the network policy closes the model servers' port")
		}
		source := cfg.Pools[0].Kubernetes
		if source == nil || "InferencePool/"+source.InferencePool != name {
			t.Errorf("the gateway does not look at %s", name)
		}
	}
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
