// Package deploy has no code: these are the tests of the manifests in this folder, with the real programs.
package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/discover/kube"
	"pointsman.dev/pointsman/internal/testkit/kubetest"
)

type obj = map[string]any

// program finds a tool in out/bin or on the path, or skips.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../out/bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = os.Stat(path); err == nil {
		return path
	}
	if path, err = exec.LookPath(name); err != nil {
		t.Skipf("%s is not there; `make tools` installs it", name)
	}
	return path
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program(t, name), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// objects reads a stream of manifests, by kind and name.
func objects(t *testing.T, text string) map[string]obj {
	t.Helper()
	all := map[string]obj{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o obj
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if len(o) == 0 {
			continue
		}
		// through JSON, so that numbers are of one type wherever they come from
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		o = obj{}
		if err := json.Unmarshal(raw, &o); err != nil {
			t.Fatal(err)
		}
		all[fmt.Sprint(o["kind"], "/", at(o, "metadata", "name"))] = o
	}
	return all
}

// at follows keys and indices.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// overlays are the folders that somebody applies.
func overlays(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("kustomize/*/pointsman.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no overlays: %v", err)
	}
	for i := range paths {
		paths[i] = filepath.Dir(paths[i])
	}
	return paths
}

// Every configuration in here is one that the gateway takes, without a warning.
func TestConfigurations(t *testing.T) {
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "pointsman.yaml" {
			return err
		}
		n++
		cfg, err := config.Check(path)
		if err != nil {
			t.Error(err)
			return nil
		}
		for _, w := range cfg.Warnings {
			t.Error(w)
		}
		return nil
	})
	if err != nil || n == 0 {
		t.Fatal(err, n)
	}
}

// policies runs the command and returns both of its policies.
func policies(t *testing.T, args ...string) (models, gateway string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := app.Manifests(t.Context(), append([]string{"network-policy"}, args...), &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	models, gateway, _ = strings.Cut(out.String(), "---\n")
	return models, gateway
}

// The policies that stand here as files are what the command writes that their first line names.
func TestNetworkPolicyFiles(t *testing.T) {
	for _, dir := range overlays(t) {
		line, file, _ := strings.Cut(read(t, filepath.Join(dir, "model-networkpolicy.yaml")), "\n")
		args, ok := strings.CutPrefix(line, "# pointsman manifests network-policy ")
		models, gateway := policies(t, strings.Fields(args)...)
		if diff := cmp.Diff(models, file); !ok || diff != "" {
			t.Errorf("%s: %s (-command +file):\n%s", dir, line, diff)
		}
		patch, err := os.ReadFile(filepath.Join(dir, "networkpolicy.yaml")) // where Envoy asks the gateway
		if gateway = strings.Replace(gateway, "  namespace: models\n", "", 1); err == nil && gateway != string(patch) {
			t.Errorf("%s: the gateway's policy is not what the command writes:\n%s", dir, cmp.Diff(gateway, string(patch)))
		}
	}
	_, own := policies(t)
	own = strings.Replace(own, "  namespace: models\n", "", 1) // kustomize sets it
	if diff := cmp.Diff(own, read(t, "kustomize/base/networkpolicy.yaml")); diff != "" {
		t.Errorf("gateway (-command +file):\n%s", diff)
	}
}

// The Role is all that discovery needs, in the namespace it is in, and nothing else is allowed.
func TestRights(t *testing.T) {
	program(t, "kustomize")
	s := kubetest.Start(t)
	withCRDs(t, s)
	text := run(t, "kustomize", "build", "kustomize/aibrix")
	// the test's user stands for the service account
	text = strings.Replace(text, "- kind: ServiceAccount\n  name: pointsman\n  namespace: models\n", "- apiGroup: rbac.authorization.k8s.io\n  kind: User\n  name: gateway\n", 1)
	if err := s.Apply(text, false); err != nil {
		t.Fatal(err)
	}
	discovers(t, s)
	want := map[string]bool{}
	for _, verb := range []string{"list", "watch"} {
		for _, r := range []string{" pods", "discovery.k8s.io endpointslices", "inference.networking.k8s.io inferencepools", "inference.networking.x-k8s.io inferencepools"} {
			want[verb+" "+r+" models"] = true
		}
	}
	for _, namespace := range []string{"models", "default", ""} { // "": the whole cluster
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
			for _, r := range []string{" pods", " pods/log", " pods/exec", " secrets", " configmaps", " services", " nodes", "apps deployments", "discovery.k8s.io endpointslices",
				"inference.networking.k8s.io inferencepools", "inference.networking.k8s.io inferencepools/status", "inference.networking.x-k8s.io inferencepools",
				"rbac.authorization.k8s.io roles"} {
				if got := allowed(t, s, verb, r, namespace); got != want[verb+" "+r+" "+namespace] {
					t.Errorf("%s %s in namespace %q: allowed is %v", verb, r, namespace, got)
				}
			}
		}
	}
}

// discovers demands that the gateway finds a pod with the rights that it has.
func discovers(t *testing.T, s *kubetest.Server) {
	t.Helper()
	if err := s.Apply("apiVersion: v1\nkind: Pod\nmetadata:\n  name: vllm\n  namespace: models\n  labels: {model.aibrix.ai/name: m}\nspec: {containers: [{name: vllm, image: vllm}]}\n", false); err != nil {
		t.Fatal(err)
	}
	code, answer, err := s.Do("PATCH", "/api/v1/namespaces/models/pods/vllm/status", "application/merge-patch+json",
		[]byte(`{"status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"conditions":[{"type":"Ready","status":"True"}]}}`))
	if err != nil || code != 200 {
		t.Fatalf("%d %v\n%s", code, err, answer)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cluster := kube.NewCluster(kube.Access{Kubeconfig: s.Kubeconfig(kubetest.UserToken, "models")}, slog.New(slog.DiscardHandler))
	up, ended := make(chan []discover.Target), make(chan struct{})
	go func() {
		cluster.Discover(kube.Source{AIBrix: "m"}).Run(ctx, up)
		close(ended)
	}()
	select {
	case set := <-up:
		if len(set) != 1 || set[0].URL != "http://10.0.0.1:8000" {
			t.Errorf("found %v", set)
		}
	case <-ended:
		t.Error("nothing was found with the Role's rights")
	}
	cancel()
	<-ended
}

// allowed asks whether the user gateway may do something; resource is its group and its name.
func allowed(t *testing.T, s *kubetest.Server, verb, resource, namespace string) bool {
	t.Helper()
	group, name, _ := strings.Cut(resource, " ")
	name, sub, _ := strings.Cut(name, "/")
	review := fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"gateway","resourceAttributes":{"verb":%q,"group":%q,"resource":%q,"subresource":%q,"namespace":%q}}}`,
		verb, group, name, sub, namespace)
	code, answer, err := s.Do("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", []byte(review))
	var got any
	if err != nil || json.Unmarshal(answer, &got) != nil || code != 201 {
		t.Fatalf("%d %v\n%s", code, err, answer)
	}
	return at(got, "status", "allowed") == true
}

// What a pod of the gateway may not be, and how long it has to end.
func TestPods(t *testing.T) {
	for _, dir := range overlays(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			cfg, err := config.Check(filepath.Join(dir, "pointsman.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			checkPod(t, objects(t, run(t, "kustomize", "build", dir)), cfg)
		})
	}
}

func checkPod(t *testing.T, all map[string]obj, cfg *config.Config) {
	t.Helper()
	pod := at(all["Deployment/pointsman"], "spec", "template", "spec")
	box := at(pod, "containers", 0)
	for what, got := range map[string][2]any{
		"grace":           {at(pod, "terminationGracePeriodSeconds"), cfg.GracePeriod().Seconds()},
		"not root":        {at(pod, "securityContext", "runAsNonRoot"), true},
		"seccomp":         {at(pod, "securityContext", "seccompProfile", "type"), "RuntimeDefault"},
		"read-only":       {at(box, "securityContext", "readOnlyRootFilesystem"), true},
		"escalation":      {at(box, "securityContext", "allowPrivilegeEscalation"), false},
		"capabilities":    {at(box, "securityContext", "capabilities", "drop", 0), "ALL"},
		"no hook":         {at(box, "lifecycle"), nil},
		"disruption":      {at(all["PodDisruptionBudget/pointsman"], "spec", "maxUnavailable"), 1.0},
		"two hosts":       {at(pod, "topologySpreadConstraints", 0, "topologyKey"), "kubernetes.io/hostname"},
		"service":         {at(all["Service/pointsman"], "spec", "ports", 0, "targetPort"), "api"},
		"room for bodies": {at(box, "volumeMounts", 1, "mountPath"), "/tmp"},
		"on disk":         {at(pod, "volumes", 1, "emptyDir"), obj{}},
		"configuration":   {at(pod, "volumes", 0, "configMap", "name"), "pointsman"},
	} {
		if !cmp.Equal(got[0], got[1]) {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
	if cfg.ExtProc != nil {
		checkPicker(t, all, box)
	}
	text, _ := at(all["ConfigMap/pointsman"], "data", "pointsman.yaml").(string)
	if _, err := config.Parse("pointsman.yaml", []byte(text)); err != nil {
		t.Errorf("the ConfigMap: %v", err)
	}
}

// checkPicker follows a request: route, pool, picker's Service, the container's port.
func checkPicker(t *testing.T, all map[string]obj, box any) {
	t.Helper()
	backend := at(all["HTTPRoute/inference"], "spec", "rules", 0, "backendRefs", 0, "name")
	pool := all[fmt.Sprint("InferencePool/", backend)]
	ref := at(pool, "spec", "endpointPickerRef")
	service := all[fmt.Sprint("Service/", at(ref, "name"))]
	if service == nil || !cmp.Equal(at(service, "spec", "ports", 0, "port"), at(ref, "port", "number")) {
		t.Errorf("the pool's picker %v is no Service here", ref)
	}
	last := at(box, "ports").([]any)
	if got := last[len(last)-1]; at(got, "name") != at(service, "spec", "ports", 0, "targetPort") || !cmp.Equal(at(got, "containerPort"), 9002.0) {
		t.Errorf("the Service leads to %v, the container has %v", at(service, "spec", "ports", 0), got)
	}
	if at(all["HTTPRoute/inference"], "spec", "rules", 0, "timeouts", "request") != "0s" {
		t.Error("the route cuts long generations")
	}
}

// A real API server takes every object, strictly: no unknown field, every value valid.
func TestApply(t *testing.T) {
	program(t, "kustomize")
	s := kubetest.Start(t)
	withCRDs(t, s)
	for _, dir := range append(overlays(t), "testdata/monitored") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			if err := s.Apply(run(t, "kustomize", "build", dir), true); err != nil {
				t.Error(err)
			}
		})
	}
	// labels as odd as Kubernetes allows, which are numbers and booleans to YAML
	models, gateway := policies(t, "--models", "app.kubernetes.io/name=vLLM_0.9.1-x,empty=,n=123,yes=true,e=1e3", "--models", "app=null:8100:8101", "--gateway", "a.b/c=on")
	if err := s.Apply(models+"---\n"+gateway, false); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]obj{
		"pointsman-model-servers":   {"app.kubernetes.io/name": "vLLM_0.9.1-x", "empty": "", "n": "123", "yes": "true", "e": "1e3"},
		"pointsman-model-servers-2": {"app": "null"}, // which would be no label at all
		"pointsman":                 {"a.b/c": "on"},
	} {
		var got any
		code, answer, err := s.Do("GET", "/apis/networking.k8s.io/v1/namespaces/models/networkpolicies/"+name, "", nil)
		if err != nil || json.Unmarshal(answer, &got) != nil || code != 200 {
			t.Fatalf("%d %v\n%s", code, err, answer)
		}
		if diff := cmp.Diff(want, at(got, "spec", "podSelector", "matchLabels")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, file := range []string{"autoscaling/hpa.yaml", "autoscaling/keda.yaml"} {
		if err := s.Apply(read(t, file), true); err != nil {
			t.Error(err)
		}
	}
}

// withCRDs gives a server the namespace and the kinds beside Kubernetes' own, or skips.
func withCRDs(t *testing.T, s *kubetest.Server) {
	t.Helper()
	kubetest.InferencePools(t) // the newest of them: an older set is not enough
	crds, err := filepath.Glob("../out/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if err := s.Apply(read(t, crd), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Apply("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: models\n", false); err != nil {
		t.Fatal(err)
	}
}
