package deploy

import (
	"bytes"
	"encoding/json"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/config"
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
	for _, overlay := range []string{"istio", "kgateway"} { // whose Envoy runs beside the model servers
		dir := "kustomize/" + overlay
		same(t, chart(t, "--set=discovery=true,picker=true", "--set-json", `config=`+configJSON(t, dir+"/pointsman.yaml"),
			"--set-json", `networkPolicy.envoy={"namespace":"models","labels":{"app.kubernetes.io/name":null,"gateway.networking.k8s.io/gateway-name":"inference"}}`),
			run(t, "kustomize", "build", dir), "InferencePool/chat", "Gateway/inference", "HTTPRoute/inference")
	}
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

// A value that would make a gateway which nobody can reach, or that means nothing, is refused with its place.
func TestChartRefuses(t *testing.T) {
	for set, why := range map[string]string{
		"config.admin=127.0.0.1:9090":             "at '/config/admin': ",
		"config.listen=0.0.0.0:9999":              "at '/config/listen': ",
		"networkPolicy.models.ports={0}":          "at '/networkPolicy/models/ports/0': ",
		"terminationGracePeriodSeconds=1h":        "at '/terminationGracePeriodSeconds': got string, want integer",
		"terminationGracePeriodSeconds=60":        "60 would cut answers that the configuration allows to end: it needs 3615",
		"config.limit=1d":                         "at '/config/limit': ",
		"config.peers.listen=:9092":               "at '/config/peers/listen': ",
		"config.peers.dns=pointsman-headless":     "at '/config/peers/dns': ",
		"podAnnotations.a=1":                      "at '/podAnnotations/a': got number, want string",
		"nodeSelector.gpu=true":                   "at '/nodeSelector/gpu': got boolean, want string",
		"service.annotations.a=true":              "at '/service/annotations/a': got boolean, want string",
		"image.tag=":                              "at '/image/tag': ",
		"config.extproc.listen=0.0.0.0:9003":      "at '/config/extproc/listen': ",
		"monitoring.rules=sometimes":              "at '/monitoring/rules': got string, want boolean",
		"networkPolicy.prometheus.namespace=":     "at '/networkPolicy/prometheus/namespace': ",
		"networkPolicy.models.labels.app=va lue":  "at '/networkPolicy/models/labels/app': ",
		"picker=true":                             "at '/config': missing property 'extproc'",
		"config.pools[0].kubernetes.aibrix=m":     "at '/discovery': value must be true",
		"config.peers.dnss=pointsman:9091":        "at '/config/peers': additional properties 'dnss' not allowed",
		"config.pools[0].full.max_num_seq=3":      "at '/config/pools/0/full': additional properties 'max_num_seq' not allowed",
		"config.models[0].pools[0].srves=m":       "at '/config/models/0/pools/0': additional properties 'srves' not allowed",
		"resources.limit.cpu=1":                   "at '/resources': additional properties 'limit' not allowed",
		"config.kubernetes.kubeconfigs=/tmp/kube": "at '/config/kubernetes': additional properties 'kubeconfigs' not allowed",
	} {
		refuses(t, set, why)
	}
	var values obj
	if err := yaml.Unmarshal([]byte(read(t, "helm/pointsman/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	n := 0
	misspell(values, "", func(path, key string) {
		n++
		refuses(t, path+key+"x=1", "at '"+strings.ReplaceAll(strings.TrimSuffix("/"+path, "."), ".", "/")+"': additional properties '"+key+"x' not allowed")
	})
	if n < 10 {
		t.Errorf("only %d typos were tried", n)
	}
}

// refuses demands that a value is refused by a line with a text.
func refuses(t *testing.T, set, why string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(program(t, "helm"), "template", "pointsman", "helm/pointsman", "--set", set)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil {
		t.Errorf("%s is taken", set)
	} else if why = strings.Replace(why, "at '/': ", "at '': ", 1); !strings.Contains(out.String(), why) {
		t.Errorf("%s: want %q in\n%s", set, why, out.String())
	}
}

// misspell names a key of each mapping of the chart's values in which every key is one of the chart's.
func misspell(values obj, path string, try func(path, key string)) {
	for key, v := range values {
		if inner, ok := v.(obj); ok && key != "labels" && key != "annotations" && key != "requests" && key != "limits" && len(inner) > 0 {
			misspell(inner, path+key+".", try)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		try(path, key)
		return // one of them
	}
}

// The schema knows the keys of the configuration file: those that docs/config.md has, and no others.
func TestChartKnowsTheConfiguration(t *testing.T) {
	var schema obj
	if err := json.Unmarshal([]byte(read(t, "helm/pointsman/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	keys(at(schema, "properties", "config"), "", got)
	want := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.\\[\\]]+)` \\|").FindAllStringSubmatch(read(t, "../docs/config.md"), -1) {
		want[row[1]] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 50 {
		t.Errorf("%d keys (-docs/config.md +schema):\n%s", len(want), diff)
	}
}

// keys collects the paths that a schema names, and demands that no mapping takes others.
func keys(schema any, path string, into map[string]bool) {
	if items := at(schema, "items"); items != nil {
		schema, path = items, path+"[]"
	}
	props, _ := at(schema, "properties").(obj)
	if props == nil {
		return
	}
	if at(schema, "additionalProperties") != false {
		into[path+" takes any key"] = true
	}
	for key, v := range props {
		p := strings.TrimPrefix(path+"."+key, ".")
		into[p] = true
		keys(v, p, into)
	}
}

// A real API server takes what the chart renders, with every optional part.
func TestChartApplies(t *testing.T) {
	program(t, "helm")
	s := kubetest.Start(t)
	withCRDs(t, s)
	text := chart(t, monitored, "--set", "discovery=true,picker=true,config.extproc.listen=:9002,secrets={keys},imagePullSecrets[0].name=pull,service.type=LoadBalancer,podAnnotations.a=b,nodeSelector.a=b,"+
		"networkPolicy.models.ports={8000,8001},image.pullPolicy=Always", "--set-json", `tolerations=[{"operator":"Exists"}]`)
	if err := s.Apply(text, true); err != nil {
		t.Error(err)
	}
}

// The chart's grace period is the one that the configuration needs, whatever makes it up; a longer one is taken.
func TestChartGrace(t *testing.T) {
	for _, extra := range []string{"", "limit: 2h30m", "limit: 90s\ndrain_delay: 0", "drain: 0\ndrain_delay: 1m", "limit: 10m\nmodels: [{name: a, limit: 3h}, {name: b, limit: 1h}]", "limit: 2h\ndrain: 5m"} {
		text := "admin: 0.0.0.0:9090\npools: [{name: chat, dns: 'vllm.models.svc:8000'}]\n" + extra + "\n"
		cfg, err := config.Parse("pointsman.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var values obj
		if err = yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		for set, want := range map[string]float64{"0": cfg.GracePeriod().Seconds(), "90000": 90000} {
			all := objects(t, chart(t, "--set-json", "config="+string(raw), "--set", "terminationGracePeriodSeconds="+set))
			if got := at(all["Deployment/pointsman"], "spec", "template", "spec", "terminationGracePeriodSeconds"); got != want {
				t.Errorf("%q and %s: %v, want %v", extra, set, got, want)
			}
		}
	}
}
