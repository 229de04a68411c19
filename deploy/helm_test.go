package deploy

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/testkit/kubetest"
)

// chart renders the chart into the namespace models.
func chart(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "helm", append([]string{"template", "pointsman", "helm/pointsman", "--namespace", "models"}, args...)...)
}

const monitored = "--set=monitoring.podMonitor=true,monitoring.rules=true,monitoring.dashboard=true"

// Chart and kustomization are two ways to the same objects.
func TestChartIsTheKustomization(t *testing.T) {
	same(t, chart(t, monitored), run(t, "kustomize", "build", "testdata/monitored"))
	same(t, chart(t, "--set=discovery=true", "--set-json", `networkPolicy.models={"enabled":false}`, "--set-json", `config=`+configJSON(t, "kustomize/aibrix/pointsman.yaml")),
		run(t, "kustomize", "build", "kustomize/aibrix"), "NetworkPolicy/pointsman-model-servers")
	same(t, chart(t, "--set=discovery=true,picker=true", "--set-json", `config=`+configJSON(t, "kustomize/envoy-gateway/pointsman.yaml")), run(t, "kustomize", "build", "kustomize/envoy-gateway"),
		"InferencePool/chat", "Gateway/inference", "HTTPRoute/inference", "ClientTrafficPolicy/inference", "BackendTrafficPolicy/inference")
}

// configJSON is a configuration file as a value of the chart; keys of the chart's default that it has not are taken away.
func configJSON(t *testing.T, path string) string {
	t.Helper()
	var cfg obj
	if err := yaml.Unmarshal([]byte(read(t, path)), &cfg); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// same compares the objects of both; those that are named stand in one of them only.
func same(t *testing.T, chart, kustomization string, without ...string) {
	t.Helper()
	helm, kustomize := objects(t, chart), objects(t, kustomization)
	for _, name := range without {
		delete(kustomize, name)
	}
	for _, all := range []map[string]obj{helm, kustomize} {
		data, _ := at(all["ConfigMap/pointsman"], "data").(map[string]any)
		var cfg any
		if text, _ := data["pointsman.yaml"].(string); yaml.Unmarshal([]byte(text), &cfg) != nil || cfg == nil {
			t.Fatal("no configuration in the ConfigMap")
		}
		data["pointsman.yaml"] = cfg // the same keys, whatever their order and comments
		if board, ok := at(all["ConfigMap/pointsman-dashboard"], "data").(map[string]any); ok {
			board["pointsman.json"] = strings.TrimSpace(board["pointsman.json"].(string))
		}
	}
	if diff := cmp.Diff(kustomize, helm); diff != "" {
		t.Errorf("(-kustomize +helm):\n%s", diff)
	}
}

// A value that would make a gateway which nobody can reach, or that means nothing, is refused with its name.
func TestChartRefuses(t *testing.T) {
	helm := program(t, "helm")
	for set, why := range map[string]string{
		"config.admin=127.0.0.1:9090":         "admin",
		"config.listen=0.0.0.0:9999":          "listen",
		"replica=3":                           "replica",
		"networkPolicy.models.ports={0}":      "ports",
		"terminationGracePeriodSeconds=1h":    "terminationGracePeriodSeconds",
		"image.tag=":                          "tag",
		"config.extproc.listen=0.0.0.0:9003":  "extproc",
		"monitoring.rules=sometimes":          "rules",
		"networkPolicy.prometheus.namespace=": "namespace",
	} {
		var out bytes.Buffer
		cmd := exec.Command(helm, "template", "pointsman", "helm/pointsman", "--set", set)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err == nil {
			t.Errorf("%s is taken", set)
		} else if !strings.Contains(out.String(), why) {
			t.Errorf("%s: the error does not name %s:\n%s", set, why, out.String())
		}
	}
}

// A real API server takes what the chart renders, with every optional part.
func TestChartApplies(t *testing.T) {
	program(t, "helm")
	s := kubetest.Start(t)
	withCRDs(t, s)
	text := chart(t, monitored, "--set", "discovery=true,picker=true,secrets={keys},imagePullSecrets[0].name=pull,service.type=LoadBalancer,podAnnotations.a=b,nodeSelector.a=b,"+
		"networkPolicy.models.ports={8000,8001},image.pullPolicy=Always", "--set-json", `tolerations=[{"operator":"Exists"}]`)
	if err := s.Apply(text, true); err != nil {
		t.Error(err)
	}
}
