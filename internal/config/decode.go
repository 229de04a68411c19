package config

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The decoder walks the syntax tree instead of unmarshalling into structs, because one bad value must not hide the next
// one and because every value has to keep its position for the rules that are checked later.

// maxFile is the largest file read: far above any sane configuration, far below what hurts.
const maxFile = 1 << 20

// kind is what a value is in the file.
type kind uint8

const (
	kindText kind = iota
	kindInt
	kindFloat
	kindBool
	kindNull
	kindList
	kindMap
	kindOther // timestamps, binary and such tags: nothing here wants them
	kindAlias // an alias without its anchor
)

// String returns how an error calls it.
func (k kind) String() string {
	return [...]string{"text", "a whole number", "a number", "true or false", "nothing", "a list", "a mapping", "a value with a tag", "an alias of nothing"}[k]
}

// value is one value of a file or of a flag, with its place.
type value struct {
	file      string
	line, col int
	path      string // of the key
	kind      kind
	text      string   // of a scalar, without quotes
	node      ast.Node // of a list or mapping; nil for a flag
}

// flagValue is what a flag was given.
func flagValue(flag, text string) value { return value{file: flag, kind: kindText, text: text} }

// field is one key of a mapping.
type field struct {
	name string
	read func(d *decoder, v value)
}

// decoder collects what is wrong while values are read.
type decoder struct {
	name    string
	errs    []*Error
	warns   []*Error
	other   []*Error // errors of other files, sorted
	anchors map[string]ast.Node
	seen    map[string]value // by key path: what the file or a flag set
}

func newDecoder(name string) *decoder {
	return &decoder{name: name, anchors: map[string]ast.Node{}, seen: map[string]value{}}
}

// fail records that v breaks a rule; the value is shown unless it may be a secret.
func (d *decoder) fail(v value, rule, hint string) { d.failShowing(v, show(v), rule, hint) }

// failShowing is fail with the text that stands for the value, "" for none.
func (d *decoder) failShowing(v value, shown, rule, hint string) {
	if holdsSecret(hint) {
		hint = "" // a suggestion may repeat what was written
	}
	d.errs = append(d.errs, &Error{File: v.file, Line: v.line, Column: v.col, Key: v.path, Value: shown, Rule: rule, Hint: hint})
}

// warn records what is allowed and probably not meant.
func (d *decoder) warn(v value, rule, hint string) {
	d.warns = append(d.warns, &Error{File: v.file, Line: v.line, Column: v.col, Key: v.path, Value: show(v), Rule: rule, Hint: hint})
}

// err returns what was collected, sorted, or nil.
func (d *decoder) err() error {
	if len(d.errs)+len(d.other) == 0 {
		return nil
	}
	sortErrors(d.errs)
	return append(Errors(d.errs), d.other...)
}

// document parses data and returns its root; ok is false when there is nothing to read or it is not YAML, which has
// then been recorded, save for a file without content.
func (d *decoder) document(data []byte) (root value, ok bool) {
	top := value{file: d.name, line: 1, col: 1, kind: kindNull}
	if len(data) > maxFile {
		d.fail(top, fmt.Sprintf("the file has %d bytes, more than %d", len(data), maxFile), "is this the right file?")
		return top, false
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if at := bytes.IndexFunc(data, func(r rune) bool { return r == utf8.RuneError }); at >= 0 && !utf8.Valid(data) {
		before := string(data[:at])
		top.line += strings.Count(before, "\n")
		top.col = 1 + utf8.RuneCountInString(before[strings.LastIndex(before, "\n")+1:])
		d.failShowing(top, "", "not YAML: not UTF-8", "save the file as UTF-8")
		return top, false
	}
	file, err := ParseYAML(data)
	if err != nil {
		d.syntax(err)
		return top, false
	}
	var docs []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentGroupType {
			docs = append(docs, doc.Body)
		}
	}
	if len(docs) == 0 {
		return top, false
	}
	if len(docs) > 1 {
		d.fail(d.valueOf(docs[1], ""), "a second document starts here", "keep one document per file: remove the --- line")
	}
	d.collectAnchors(docs[0])
	return d.valueOf(docs[0], ""), true
}

// ParseYAML parses YAML or JSON, repeated keys included, and turns a panic of the parser into an error: a bad file must never
// take the gateway down when it is reloaded.
func ParseYAML(data []byte) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not YAML: %v", r)
		}
	}()
	tokens := joinFlowColons(lexer.Tokenize(string(data)))
	if deepest(tokens) > maxBrackets {
		return nil, fmt.Errorf("brackets stand in brackets more than %d deep", maxBrackets)
	}
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// maxBrackets is how deep flow style may be nested: the parser's time grows with the square, half a minute for 100,000.
const maxBrackets = 1000

// deepest is how deep flow style is nested at most.
func deepest(tokens token.Tokens) int {
	depth, most := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
			most = max(most, depth)
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
	}
	return most
}

// syntax records a parse error without the excerpt that the library adds, since an excerpt may show a secret.
func (d *decoder) syntax(err error) {
	v := value{file: d.name, line: 1, col: 1}
	msg := "not YAML"
	var y yaml.Error
	if errors.As(err, &y) {
		msg = "not YAML: " + y.GetMessage()
		v.line, v.col = position(y.GetToken())
	}
	d.failShowing(v, "", strings.ReplaceAll(msg, "\t", `\t`), syntaxHint(msg))
}

const aliasHint = "an anchor is &name before a value, an alias *name after it"

// syntaxHint says what usually is behind a parse error.
func syntaxHint(msg string) string {
	switch {
	case strings.Contains(msg, "tab") || strings.Contains(msg, "\t"):
		return "indent with spaces"
	case strings.Contains(msg, "quoted"):
		return "close the quote"
	case strings.Contains(msg, "key name") || strings.Contains(msg, "':'"):
		return "a key has a colon and a blank behind it: key: value"
	case strings.Contains(msg, "alias") || strings.Contains(msg, "anchor"):
		return aliasHint
	}
	return "check the indentation, and that brackets and quotes are closed"
}

// position returns the 1-based place of a token; the library's column of an odd token can be 0.
func position(tok *token.Token) (line, col int) {
	if tok == nil || tok.Position == nil {
		return 1, 1
	}
	return max(1, tok.Position.Line), max(1, tok.Position.Column)
}

// anchorVisitor remembers anchored nodes by name.
type anchorVisitor struct{ anchors map[string]ast.Node }

// Visit implements ast.Visitor.
func (a anchorVisitor) Visit(n ast.Node) ast.Visitor {
	if anchor, ok := n.(*ast.AnchorNode); ok && anchor.Name != nil && anchor.Value != nil {
		a.anchors[anchor.Name.GetToken().Value] = anchor.Value
	}
	return a
}

func (d *decoder) collectAnchors(n ast.Node) { ast.Walk(anchorVisitor{d.anchors}, n) }

// resolve follows anchors and aliases to the node that is meant; nil when an alias leads nowhere.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range 16 { // an alias of an alias of itself would never end
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.AliasNode:
			n = nil
			if x.Value != nil {
				n = d.anchors[x.Value.GetToken().Value]
			}
		default:
			return n
		}
	}
	return nil
}

// valueOf describes a node; its place is where it is used, not where its anchor is.
func (d *decoder) valueOf(n ast.Node, path string) value {
	v := value{file: d.name, line: 1, col: 1, path: path, kind: kindNull}
	if n == nil {
		return v
	}
	v.line, v.col = place(n)
	switch x := d.resolve(n).(type) {
	case *ast.StringNode:
		v.kind, v.text = kindText, x.Value
		if x.Token.Type == token.StringType && exponent(x.Value) {
			v.kind = kindFloat
		}
	case *ast.LiteralNode:
		v.kind, v.text = kindText, x.Value.Value
	case *ast.IntegerNode:
		v.kind, v.text = kindInt, x.Token.Value
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		v.kind, v.text = kindFloat, x.GetToken().Value
	case *ast.BoolNode:
		v.kind, v.text = kindBool, x.Token.Value
	case *ast.MappingNode, *ast.MappingValueNode:
		v.kind, v.node = kindMap, x
	case *ast.SequenceNode:
		v.kind, v.node = kindList, x
	case *ast.NullNode:
	case nil: // an alias of nothing
		v.kind = kindAlias
	default:
		v.kind = kindOther
	}
	return v
}

// exponent reports whether an unquoted text is a number like 9e-1, which the library takes for text.
func exponent(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && strings.ContainsAny(s, "eE") && strings.ContainsAny(s[:1], "+-.0123456789")
}

// place returns where a node starts: of a block mapping, its first key, since its own token is a colon.
func place(n ast.Node) (line, col int) {
	switch x := n.(type) {
	case *ast.MappingNode:
		if !x.IsFlowStyle && len(x.Values) > 0 {
			return position(x.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return position(x.Key.GetToken())
	}
	return position(n.GetToken())
}

// entry is one key of a mapping with its value.
type entry struct {
	key value
	val ast.Node
}

// entries lists a mapping's own keys in order, then those that merge keys (<<) bring and that are not there yet.
func (d *decoder) entries(v value, depth int) []entry {
	var own, merged []entry
	var nodes []*ast.MappingValueNode
	switch x := v.node.(type) {
	case *ast.MappingNode:
		nodes = x.Values
	case *ast.MappingValueNode:
		nodes = []*ast.MappingValueNode{x}
	}
	for _, n := range nodes {
		if n.Key.IsMergeKey() {
			merged = append(merged, d.merge(n, v.path, depth)...)
			continue
		}
		own = append(own, entry{d.keyOf(n.Key, v.path), n.Value})
	}
	have := map[string]bool{}
	for _, e := range own {
		have[e.key.text] = true
	}
	for _, e := range merged {
		if !have[e.key.text] {
			have[e.key.text] = true
			own = append(own, e)
		}
	}
	return own
}

// keyOf describes a mapping's key; its path is the one of its value.
func (d *decoder) keyOf(key ast.MapKeyNode, parent string) value {
	k := d.valueOf(key, parent)
	if k.kind == kindOther || k.kind == kindNull {
		k.text = key.GetToken().Value
	}
	k.kind = kindText
	k.path = join(parent, printable(k.text))
	return k
}

// merge returns the keys that a merge key brings.
func (d *decoder) merge(n *ast.MappingValueNode, path string, depth int) []entry {
	if depth > 8 {
		return nil
	}
	from := d.valueOf(n.Value, path)
	switch from.kind {
	case kindMap:
		return d.entries(from, depth+1)
	case kindList:
		var all []entry
		for _, item := range d.items(from) {
			if item.kind == kindMap {
				all = append(all, d.entries(item, depth+1)...)
			}
		}
		return all
	}
	d.fail(from, "<< needs a mapping to take keys from", "anchor one with &name and write <<: *name")
	return nil
}

// items lists a list's values with their paths.
func (d *decoder) items(v value) []value {
	seq, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return nil
	}
	vs := make([]value, len(seq.Values))
	for i, n := range seq.Values {
		vs[i] = d.valueOf(n, v.path+"["+strconv.Itoa(i)+"]")
	}
	return vs
}

// unknown stands in seen for an unknown key of a mapping: what is missing there may be what was misspelt.
const unknown = "?"

// object reads a mapping by its table of fields: unknown, repeated and empty keys are recorded, the others read in the
// order of the file and remembered in seen.
func (d *decoder) object(v value, fields []field) {
	if v.kind != kindMap {
		hint := "write {" + fields[0].name + ": ..., ...}"
		if len(fields) <= 2 {
			hint = "write {" + strings.ReplaceAll(names(fields), ",", ": ...,") + ": ...}"
		}
		if v.path == "" && strings.Contains(v.text, "://") || v.kind == kindList && v.path == "" {
			hint = "an endpoints file is named by pools[].file"
		}
		if v.kind == kindAlias {
			hint = aliasHint
		}
		d.fail(v, fmt.Sprintf("is %s, want a mapping with the keys %s", v.kind, names(fields)), hint)
		return
	}
	lines := map[string]int{}
	for _, e := range d.entries(v, 0) {
		f := find(fields, e.key.text)
		if f == nil {
			rule, hint := unknownKey(e.key.text, e.key.path, fields)
			d.failShowing(e.key, "", rule, hint)
			d.seen[join(v.path, unknown)] = e.key
			continue
		}
		if first, again := lines[f.name]; again {
			d.failShowing(e.key, "", fmt.Sprintf("set a second time, first in line %d", first), "keep one of them")
			continue
		}
		lines[f.name] = e.key.line
		val := d.valueOf(e.val, e.key.path)
		if val.kind == kindNull {
			val.line, val.col = e.key.line, e.key.col // an empty value has no place of its own
			d.failShowing(val, "", "has no value", "give it one, or remove the key")
			continue
		}
		d.seen[val.path] = val
		f.read(d, val)
	}
}

// find returns the field of that name, nil when there is none.
func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// names lists the fields for an error.
func names(fields []field) string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.name
	}
	return strings.Join(all, ", ")
}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
