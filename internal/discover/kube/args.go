package kube

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"pointsman.dev/pointsman/internal/discover"
)

// settingsOf reads a pod's containers. What one says holds for the ports that it declares, and what the first one says, at port 0, for those
// that nobody does. Nil: none says something about a model server. Only what the flags below name is kept: arguments may hold keys.
func settingsOf(p *corev1.Pod) map[int]discover.Settings {
	var found map[int]discover.Settings
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		s := containerSettings(c)
		if s == (discover.Settings{}) {
			continue
		}
		if found == nil {
			found = map[int]discover.Settings{0: s}
		}
		for _, port := range c.Ports {
			found[int(port.ContainerPort)] = s
		}
	}
	return found
}

// containerSettings reads the command line, which wins, and the variables that stand for parts of it.
func containerSettings(c *corev1.Container) discover.Settings {
	sh := shell{env: make(map[string]string, len(c.Env)), room: maxExpansion}
	var s discover.Settings
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			continue // another object's
		}
		sh.env[e.Name] = sh.kubelet(e.Value)
		if strings.HasPrefix(e.Name, "MAX_") { // text-generation-inference takes each of its flags from there too
			apply(&s, strings.ToLower(e.Name), sh.env[e.Name])
		}
	}
	var list []string // with what the kubelet puts in, before a shell sees any of it
	for _, arg := range slices.Concat(c.Command, c.Args) {
		list = append(list, sh.kubelet(arg))
	}
	for _, arg := range list {
		sh.script(arg, 0)
	}
	for i, word := range sh.words {
		name, isFlag := strings.CutPrefix(word, "--")
		if !isFlag {
			continue
		}
		name, value, joined := strings.Cut(name, "=")
		if !joined && i+1 < len(sh.words) {
			value = sh.words[i+1]
		}
		apply(&s, name, value)
	}
	return s
}

// apply takes one flag of vLLM, SGLang, TensorRT-LLM or text-generation-inference. Words are joined by - or _ .
func apply(s *discover.Settings, flag, value string) {
	number := func(dst *int) {
		if n := count(value); n > 0 {
			*dst = n
		}
	}
	switch strings.ReplaceAll(flag, "_", "-") {
	case "max-num-seqs", "max-running-requests", "max-batch-size":
		number(&s.MaxNumSeqs)
	case "max-num-batched-tokens", "chunked-prefill-size", "max-num-tokens", "max-batch-prefill-tokens":
		number(&s.MaxBatchedTokens)
	case "max-model-len", "context-length", "max-seq-len", "max-total-tokens":
		number(&s.MaxModelLen)
	case "enable-prefix-caching":
		s.PrefixCaching = discover.On
		if strings.EqualFold(value, "false") {
			s.PrefixCaching = discover.Off
		}
	case "no-enable-prefix-caching", "disable-radix-cache":
		s.PrefixCaching = discover.Off
	}
}

// count reads a number as vLLM does: 32768, 32k is 32000, 32K is 32768, 1.5k is 1500. It is 0 for what is none.
func count(text string) int {
	units := map[byte]float64{'k': 1e3, 'm': 1e6, 'g': 1e9, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
	unit := 1.0
	if n := len(text); n > 0 && units[text[n-1]] > 0 {
		unit, text = units[text[n-1]], text[:n-1]
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0) || f*unit > 1e9 {
		return 0
	}
	return int(f * unit)
}
