package kubetest

import (
	"net/http"
	"strings"
	"testing"
)

const manifests = `# two objects of one file
apiVersion: v1
kind: Namespace
metadata:
  name: models
---
# Source: a comment before the object
apiVersion: v1
kind: ConfigMap
metadata:
  labels:
    name: not-this-one
  # a comment inside
  name: settings
  namespace: models
data:
  name: nor-this-one
`

// What a real server must do for its tests: take manifests, refuse wrong ones, store nothing in a dry run, keep what it
// has over a restart, and be one of several.
func TestServer(t *testing.T) {
	s := Start(t)
	if err := s.Apply(manifests, false); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/models/configmaps/"
	status := func(s *Server, name string) int {
		t.Helper()
		code, _, err := s.Do(http.MethodGet, path+name, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	if err := s.Apply(strings.ReplaceAll(manifests, "name: settings", "name: dry"), true); err != nil {
		t.Error(err)
	}
	if got := [2]int{status(s, "settings"), status(s, "dry")}; got != [2]int{200, 404} {
		t.Errorf("the stored object answers %d and the dry one %d, want 200 and 404", got[0], got[1])
	}
	for name, wrong := range map[string]string{
		"an unknown field":    strings.ReplaceAll(manifests, "\ndata:", "\ndatum:"),
		"an unknown kind":     strings.ReplaceAll(manifests, "ConfigMap", "ConfigMop"),
		"a missing namespace": strings.ReplaceAll(manifests, "namespace: models", "namespace: absent"),
	} {
		if err := s.Apply(wrong, true); err == nil || !strings.Contains(err.Error(), "settings") {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := s.Beside()
	s.Stop()
	if _, _, err := s.Do(http.MethodGet, "/readyz", "", nil); err == nil {
		t.Error("a stopped server answers")
	}
	if code := status(other, "settings"); code != 200 {
		t.Errorf("the server beside it answers %d", code)
	}
	s.Compact()
	s.Resume()
	if code := status(s, "settings"); code != 200 {
		t.Errorf("the server that came back answers %d", code)
	}
}
