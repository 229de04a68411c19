package manifests

import (
	"fmt"
	"strings"
)

// ParseLabels reads "app=vllm,role=decode": at least one label, each at most once. The error says what is wrong and what to
// write.
func ParseLabels(text string) (Labels, error) {
	labels := Labels{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || strings.HasSuffix(name, "!") || strings.HasPrefix(value, "=") {
			return nil, fmt.Errorf("reading labels %q: want name=value, separated by commas, like app=vllm", text)
		}
		if err := labelName(name); err != nil {
			return nil, fmt.Errorf("reading labels %q: %w", text, err)
		}
		if value != "" && !word(value, 63) {
			return nil, fmt.Errorf("reading labels %q: the value %q is no label value: letters, digits, '-', '_' and '.', at most 63", text, value)
		}
		if _, twice := labels[name]; twice {
			return nil, fmt.Errorf("reading labels %q: %s is there twice", text, name)
		}
		labels[name] = value
	}
	return labels, nil
}

// ParsePeer reads "namespace/name=value,..." or "namespace" alone, which is every pod of it.
func ParsePeer(text string) (Peer, error) {
	namespace, labels, some := strings.Cut(text, "/")
	if strings.Contains(namespace, "=") {
		return Peer{}, fmt.Errorf("reading %q: want NAMESPACE or NAMESPACE/name=value", text)
	}
	if err := CheckNamespace(namespace); err != nil {
		return Peer{}, err
	}
	p := Peer{Namespace: namespace}
	if !some {
		return p, nil
	}
	var err error
	p.Pods, err = ParseLabels(labels)
	return p, err
}

// CheckNamespace returns an error unless the text can be a namespace's name.
func CheckNamespace(name string) error {
	if !dnsLabel(name) {
		return fmt.Errorf("reading namespace %q: want lower case letters, digits and '-', at most 63", name)
	}
	return nil
}

// labelName checks a label's name, with or without a prefix.
func labelName(name string) error {
	prefix, base, some := strings.Cut(name, "/")
	if !some {
		prefix, base = "", name
	}
	for part := range strings.SplitSeq(prefix, ".") {
		if some && !dnsLabel(part) {
			return fmt.Errorf("%q is no label name: its prefix has to be a domain", name)
		}
	}
	if !word(base, 63) {
		return fmt.Errorf("%q is no label name: letters, digits, '-', '_' and '.', at most 63", name)
	}
	return nil
}

// word reports whether s begins and ends with a letter or digit and has only those, '-', '_' and '.'.
func word(s string, most int) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || i == len(s)-1 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return s != "" && len(s) <= most
}

func dnsLabel(s string) bool {
	return word(s, 63) && s == strings.ToLower(s) && !strings.ContainsAny(s, "_.")
}
