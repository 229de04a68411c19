package kube

import (
	"os"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"pointsman.dev/pointsman/internal/discover"
)

// settingsOf reads a pod's containers until one says something about a model server. Only what the flags below name is
// kept: arguments may hold keys.
func settingsOf(p *corev1.Pod) discover.Settings {
	for i := range p.Spec.Containers {
		if s := containerSettings(&p.Spec.Containers[i]); s != (discover.Settings{}) {
			return s
		}
	}
	return discover.Settings{}
}

// containerSettings reads the command line, which wins, and the variables that stand for parts of it.
func containerSettings(c *corev1.Container) discover.Settings {
	env := make(map[string]string, len(c.Env))
	var s discover.Settings
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			continue // another object's
		}
		env[e.Name] = kubernetesExpand(e.Value, env)
		if strings.HasPrefix(e.Name, "MAX_") { // text-generation-inference takes each of its flags from there too
			apply(&s, strings.ToLower(e.Name), env[e.Name])
		}
	}
	words := commandLine(c, env)
	for i, word := range words {
		name, isFlag := strings.CutPrefix(word, "--")
		if !isFlag {
			continue
		}
		name, value, joined := strings.Cut(name, "=")
		if !joined && i+1 < len(words) {
			value = words[i+1]
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

// commandLine is command and args as words, with what Kubernetes and a shell put in. A script of `sh -c` is one argument
// with blanks in it.
func commandLine(c *corev1.Container, env map[string]string) []string {
	var words []string
	for _, list := range [][]string{c.Command, c.Args} {
		for _, arg := range list {
			arg = os.Expand(kubernetesExpand(arg, env), func(name string) string { return env[name] })
			for word := range strings.FieldsSeq(strings.ReplaceAll(arg, "\\\n", " ")) {
				words = append(words, strings.Trim(word, `"';`))
			}
		}
	}
	return words
}

// kubernetesExpand replaces $(NAME) by a variable that is known, as the kubelet does.
func kubernetesExpand(text string, env map[string]string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$(")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		name, after, closed := strings.Cut(rest, ")")
		value, known := env[name]
		if !closed || !known {
			b.WriteString("$(")
			text = rest
			continue
		}
		b.WriteString(value)
		text = after
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
