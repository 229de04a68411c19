package kube

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"pointsman.dev/pointsman/internal/config"
)

// What client-go logs is debug at most, and the bodies of what it read are in no log.
func TestClientLog(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelDebug: "level=DEBUG", slog.LevelInfo: ""} {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
		if _, err := dial(Access{Kubeconfig: kubeconfig(t, "")}, log); err != nil {
			t.Fatal(err)
		}
		klog.Background().Info("a watch ended")
		klog.Background().V(8).Info("Response Body", "body", "sk-secret")
		if text := out.String(); strings.Contains(text, "sk-secret") || strings.Contains(text, "a watch ended") != (want != "") || !strings.Contains(text, want) {
			t.Errorf("at level %v the log is %q", level, text)
		}
	}
}

func kubeconfig(t *testing.T, namespace string) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: c, user: u, namespace: "` + namespace + `"}}, {name: b, context: {cluster: c, user: u, namespace: other}}],
  clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAccess(t *testing.T) {
	for _, c := range []struct {
		a         Access
		namespace string
		err       string
	}{
		{Access{Kubeconfig: kubeconfig(t, "models")}, "models", ""},
		{Access{Kubeconfig: kubeconfig(t, "")}, "default", ""},
		{Access{Kubeconfig: kubeconfig(t, "models"), Context: "b"}, "other", ""},
		{Access{Kubeconfig: kubeconfig(t, "models"), Context: "c"}, "", "context"},
		{Access{Kubeconfig: "absent"}, "", "absent"},
		{Access{}, "", "outside a cluster name a kubeconfig"},
	} {
		conn, err := dial(c.a, quietLog())
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %v, want %q in it", c.a, err, c.err)
		}
		if err == nil && conn.namespace != c.namespace {
			t.Errorf("%+v: namespace %q, want %q", c.a, conn.namespace, c.namespace)
		}
	}
}

// A selector that the configuration takes is one that Kubernetes takes, and the other way round but for an empty set.
func TestSelectorsOfTheConfiguration(t *testing.T) {
	for _, s := range []string{"app=vllm", "app==vllm", "app!=vllm", "app", "!app", "app in (a,b)", "app notin ( a , b )", "a.b/c-d=x_1.y,e", "app=", "app = vllm , tier",
		"app=vllm,", "=x", "app in vllm", "a b", "app=va lue", "-a=b", "app=-b", "a/b/c=d", "A/b=c"} {
		_, err := labels.Parse(s)
		_, refused := config.Parse("x.yaml", []byte("pools: [{name: a, kubernetes: {selector: '"+s+"'}}]"))
		if (err == nil) != (refused == nil) {
			t.Errorf("%q: Kubernetes says %v, the configuration %v", s, err, refused)
		}
	}
}
