// Package importer reads the configuration of other gateways and routers and says the same in Pointsman's words: a
// pointsman.yaml, and a list of what was in the files and has no place in it, each with the reason.
//
// It is for: llm-d's EndpointPickerConfig and endpoints files, InferencePools, AIBrix Deployments, vLLM production-stack
// (Helm values and router flags), the sglang and vllm routers' flags, and LiteLLM's model_list.
//
// It does not: read files, contact anything, or guess. What a file does not say is not invented: the list says what is
// missing. No key, password or token of a file is in the result, the list or an error.
//
// Import may be called from any goroutine; it keeps nothing.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/config"
)

// File is one file to import. Name stands for it in errors and in the list.
type File struct {
	Name string
	Data []byte
}

// Fate is why something of a file is not in the result.
type Fate uint8

const (
	// Todo has to be done by hand: the files do not say enough, or hold a secret.
	Todo Fate = iota
	// ByItself is done without a setting.
	ByItself
	// NoCounterpart is not done.
	NoCounterpart
	// Unknown is a key that the importer does not know.
	Unknown
)

// String returns how the list calls it.
func (f Fate) String() string {
	return [...]string{"to do", "needs no setting", "no counterpart", "not known here"}[f]
}

// Note is one entry of the list: what stands at a place of a file and is not in the result, and why.
type Note struct {
	File string
	Line int // 1-based
	Key  string
	Fate Fate
	Why  string
}

// String returns "file:line: key: fate: why".
func (n Note) String() string {
	s := fmt.Sprintf("%s:%d: %s: %s", n.File, n.Line, n.Key, n.Fate)
	if n.Why != "" {
		s += ": " + n.Why
	}
	return s
}

// Result is what an import came to.
type Result struct {
	// YAML is a configuration that config.Parse accepts.
	YAML string
	// Notes is the list, in the order of the files and their lines.
	Notes []Note
}

// Import reads the files together, so that one may name what another one defines. The error is a config.Errors with
// everything that is wrong, each with its place and a suggestion. Beside an error of files that make sense and name no
// endpoints there is a Result too, with the list and without YAML.
func Import(files []File) (*Result, error) {
	im := &importer{}
	for _, f := range files {
		im.file(f)
	}
	var failed *Result
	if len(im.errs) == 0 {
		im.finish(files)
		failed = &Result{Notes: im.notes} // why there is nothing may be in them
	}
	if len(im.errs) > 0 {
		slices.SortStableFunc(im.errs, func(a, b *config.Error) int {
			return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return failed, config.Errors(im.errs)
	}
	text := im.plan.yaml(im.notes)
	if _, err := config.Parse("pointsman.yaml", []byte(text)); err != nil {
		return nil, refused(files, err)
	}
	return &Result{YAML: text, Notes: im.notes}, nil
}

// importer collects what the files say.
type importer struct {
	plan  plan
	notes []Note
	errs  []*config.Error

	listed  []string // endpoints of llm-d's endpoints files
	watched *node    // the file-discovery plugin that names such a file
}

// refused says of the files what is wrong with the configuration made of them, which nobody has seen: it is too large for one gateway.
func refused(files []File, err error) error {
	var first *config.Error
	if !errors.As(err, &first) {
		return err
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	return config.Errors{{File: strings.Join(names, ", "), Rule: "one gateway does not take what is there: " + first.Key + ": " + first.Rule,
		Hint: "import them in parts, each for a gateway of its own"}}
}

// file imports one file: documents of YAML, or a text with a command line.
func (im *importer) file(f File) {
	if im.command(f) {
		return
	}
	for _, doc := range im.parse(f) {
		im.document(doc)
	}
}

// kinds are the documents that are known, in the order in which they are tried: how one is recognised, and who reads it.
func kinds() []struct {
	what string
	is   func(*node) bool
	read func(*importer, *node)
} {
	return []struct {
		what string
		is   func(*node) bool
		read func(*importer, *node)
	}{
		{"llm-d's EndpointPickerConfig", isPickerConfig, (*importer).pickerConfig},
		{"llm-d's endpoints file", isEndpointsFile, (*importer).endpointsFile},
		{"LiteLLM's model_list", has("model_list"), (*importer).liteLLM},
		{"vLLM production-stack's Helm values", has("servingEngineSpec", "routerSpec"), (*importer).stackValues},
		{"vLLM production-stack's dynamic configuration", has("static_backends", "static_models", "routing_logic"), (*importer).stackDynamic},
		{"a Kubernetes object", has("kind"), (*importer).object},
	}
}

// has reports whether a document has one of the keys.
func has(keys ...string) func(*node) bool {
	return func(n *node) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return n.peek(k) != nil })
	}
}

// document imports one document of YAML.
func (im *importer) document(doc *node) {
	var known []string
	for _, k := range kinds() {
		if doc.kind == kindMap && k.is(doc) {
			k.read(im, doc)
			im.unread(doc)
			return
		}
		known = append(known, k.what)
	}
	im.fail(doc, "", "nothing that is known here", "known are "+strings.Join(known, ", ")+", and the command lines of routers")
}

// fail records what makes an import impossible. value is shown, so it must not be able to hold a secret.
func (im *importer) fail(n *node, value, rule, hint string) {
	im.errs = append(im.errs, &config.Error{File: n.file, Line: n.line, Column: n.col, Key: n.path, Value: value, Rule: rule, Hint: hint})
}

// note adds to the list.
func (im *importer) note(n *node, fate Fate, why string) {
	if n == nil {
		return
	}
	n.use()
	im.notes = append(im.notes, Note{File: n.file, Line: n.line, Key: n.path, Fate: fate, Why: why})
}

// unread lists what nobody asked for, at the highest place.
func (im *importer) unread(n *node) {
	for _, k := range n.keys {
		if !k.val.used {
			im.note(k.val, Unknown, "")
			continue
		}
		im.unread(k.val)
	}
	for _, item := range n.items {
		im.unread(item)
	}
}

// finish joins what several files say and puts the list in order.
func (im *importer) finish(files []File) {
	im.joinPools()
	if len(im.plan.pools) == 0 && len(im.errs) == 0 {
		name := "nothing"
		if len(files) > 0 {
			name = files[len(files)-1].Name
		}
		im.errs = append(im.errs, &config.Error{File: name, Rule: "the files do not say where the endpoints are",
			Hint: "name the file that does too: an endpoints file, an InferencePool, the router's flags"})
	}
	order := map[string]int{}
	for i, f := range files {
		order[f.Name] = i
	}
	slices.SortStableFunc(im.notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line))
	})
}
