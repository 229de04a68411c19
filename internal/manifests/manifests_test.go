package manifests

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// read is what Kubernetes makes of a manifest.
func read(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

type obj = map[string]any
type list = []any

func ports(n ...uint64) list {
	var l list
	for _, p := range n {
		l = append(l, obj{"port": p, "protocol": "TCP"})
	}
	return l
}

// Peers of another namespace are one element with both selectors: as two elements either alone would let somebody in.
func TestModelPolicy(t *testing.T) {
	p := ModelPolicy{Namespace: "models", Pods: Labels{"app": "vllm", "tier": "1"}, Ports: []int{8000, 8001},
		From: []Peer{{Pods: Labels{"app.kubernetes.io/name": "pointsman"}}, {Namespace: "monitoring", Pods: Labels{"a": "b"}}, {Namespace: "mesh"}}}
	want := obj{"podSelector": obj{"matchLabels": obj{"app": "vllm", "tier": "1"}}, "policyTypes": list{"Ingress"},
		"ingress": list{obj{"ports": ports(8000, 8001), "from": list{
			obj{"podSelector": obj{"matchLabels": obj{"app.kubernetes.io/name": "pointsman"}}},
			obj{"namespaceSelector": obj{"matchLabels": obj{"kubernetes.io/metadata.name": "monitoring"}}, "podSelector": obj{"matchLabels": obj{"a": "b"}}},
			obj{"namespaceSelector": obj{"matchLabels": obj{"kubernetes.io/metadata.name": "mesh"}}},
		}}}}
	if diff := cmp.Diff(want, read(t, p.YAML())["spec"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A port without a rule is closed: the admin listener asks for no password.
func TestGatewayPolicy(t *testing.T) {
	p := GatewayPolicy{Namespace: "gw", Pods: Labels{"app": "gate"}, API: 8080, Admin: 9090, Peers: 9091, ExtProc: 9002,
		Monitors: []Peer{{Namespace: "monitoring"}}, Proxies: []Peer{{Namespace: "envoy", Pods: Labels{"app": "envoy"}}}}
	namespace := func(name string) obj { return obj{"matchLabels": obj{"kubernetes.io/metadata.name": name}} }
	want := obj{"podSelector": obj{"matchLabels": obj{"app": "gate"}}, "policyTypes": list{"Ingress"}, "ingress": list{
		obj{"ports": ports(8080)},
		obj{"ports": ports(9090), "from": list{obj{"namespaceSelector": namespace("monitoring")}}},
		obj{"ports": ports(9091), "from": list{obj{"podSelector": obj{"matchLabels": obj{"app": "gate"}}}}},
		obj{"ports": ports(9002), "from": list{obj{"namespaceSelector": namespace("envoy"), "podSelector": obj{"matchLabels": obj{"app": "envoy"}}}}},
	}}
	if diff := cmp.Diff(want, read(t, p.YAML())["spec"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.Peers, p.ExtProc, p.Monitors = 0, 0, nil
	if got := p.YAML(); strings.Contains(got, "9090") || strings.Contains(got, "9091") || strings.Contains(got, "9002") {
		t.Errorf("a port that nobody was named for is open:\n%s", got)
	}
}

func TestParse(t *testing.T) {
	got, err := ParsePeer("monitoring/app.kubernetes.io/name=prometheus,tier=1")
	want := Peer{Namespace: "monitoring", Pods: Labels{"app.kubernetes.io/name": "prometheus", "tier": "1"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for text, rule := range map[string]string{
		"app":                 "want name=value",
		"app!=vllm":           "want name=value",
		"app==vllm":           "want name=value",
		"":                    "want name=value",
		"-app=x":              "no label name",
		"Bad_domain/app=x":    "has to be a domain",
		"app=x\ny: z":         "no label value",
		"app=a,app=b":         "twice",
		"app=vllm,role in(a)": "want name=value",
	} {
		if _, err := ParseLabels(text); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%q: %v, want %q", text, err, rule)
		}
	}
	for _, text := range []string{"app=vllm", "", "a/b", "A", "x/"} {
		if _, err := ParsePeer(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
