package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// kind is how the server calls one kind of object in its paths.
type kind struct {
	plural     string
	namespaced bool
}

// Apply sends every document of a block-style YAML text to the server as a server-side apply. With dryRun the server
// validates, defaults and admits, and stores nothing; a namespaced object then needs its namespace to exist all the
// same. It returns an error that names the first object which was refused, with the server's words. After a
// CustomResourceDefinition it waits until its kind is served.
func (s *Server) Apply(manifests string, dryRun bool) error {
	for doc := range strings.SplitSeq("\n"+manifests, "\n---") {
		if strings.TrimSpace(stripComments(doc)) == "" {
			continue
		}
		if err := s.apply(doc, dryRun); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) apply(doc string, dryRun bool) error {
	version, name, of := field(doc, "apiVersion"), metadata(doc, "name"), field(doc, "kind")
	k, err := s.kind(version, of)
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", of, name, err)
	}
	path := root(version)
	if k.namespaced {
		namespace := metadata(doc, "namespace")
		if namespace == "" {
			namespace = "default"
		}
		path += "/namespaces/" + namespace
	}
	path += "/" + k.plural + "/" + name
	query := "?fieldManager=test&force=true&fieldValidation=Strict"
	if dryRun {
		query += "&dryRun=All"
	}
	status, answer, err := s.Do(http.MethodPatch, path+query, "application/apply-patch+yaml", []byte(doc))
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", of, name, err)
	}
	if status >= 300 {
		return fmt.Errorf("applying %s %s: status %d: %s", of, name, status, answer)
	}
	if of == "CustomResourceDefinition" && !dryRun {
		return s.established(path)
	}
	return nil
}

// established waits until a definition's kind is served.
func (s *Server) established(path string) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, answer, err := s.Do(http.MethodGet, path, "", nil)
		var crd struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err == nil && json.Unmarshal(answer, &crd) == nil {
			for _, c := range crd.Status.Conditions {
				if c.Type == "Established" && c.Status == "True" {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("waiting for %s: not established after %v", path, patience)
}

// kind asks the server, once per kind, how it calls it.
func (s *Server) kind(apiVersion, name string) (kind, error) {
	if k, ok := s.kinds[apiVersion+" "+name]; ok {
		return k, nil
	}
	status, answer, err := s.Do(http.MethodGet, root(apiVersion), "", nil)
	if err != nil {
		return kind{}, err
	}
	var list struct {
		Resources []struct {
			Name, Kind string
			Namespaced bool
		}
	}
	if status != http.StatusOK {
		return kind{}, fmt.Errorf("the server does not know apiVersion %q: status %d", apiVersion, status)
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return kind{}, err
	}
	for _, r := range list.Resources {
		if r.Kind == name && !strings.Contains(r.Name, "/") {
			s.kinds[apiVersion+" "+name] = kind{plural: r.Name, namespaced: r.Namespaced}
			return s.kinds[apiVersion+" "+name], nil
		}
	}
	return kind{}, fmt.Errorf("the server has no kind %q in apiVersion %q", name, apiVersion)
}

// root is the path of an API version: /api/v1 or /apis/group/version.
func root(apiVersion string) string {
	if strings.Contains(apiVersion, "/") {
		return "/apis/" + apiVersion
	}
	return "/api/" + apiVersion
}

// field is the value of a key at the left margin.
func field(doc, key string) string { return match(doc, `(?m)^`+key+`:[ \t]*(\S+)`) }

// metadata is the value of a key inside the top-level metadata.
func metadata(doc, key string) string {
	block := match(doc, `(?m)^metadata:[ \t]*\n((?:(?:[ \t].*)?\n?)*)`)
	indent := match(block, `^((?:[ \t]*#.*\n)*[ \t]+)`)
	indent = indent[strings.LastIndex(indent, "\n")+1:]
	return match(block, `(?m)^`+indent+key+`:[ \t]*(\S+)`)
}

// match is the first group of a pattern without quotes, "" when there is none.
func match(text, pattern string) string {
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	return strings.Trim(found[1], `"'`)
}

func stripComments(doc string) string {
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(doc, "")
}
