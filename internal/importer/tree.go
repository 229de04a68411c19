package importer

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"pointsman.dev/pointsman/internal/config"
)

// Files of other programs are read into a tree of plain nodes with places. Who wants a key asks for it, which marks it as
// read: what is not marked in the end was not understood, and is listed.

const (
	maxFile  = 4 << 20 // far above any sane file
	maxNodes = 200_000 // aliases of aliases would grow without end
	maxDepth = 64
)

type kind uint8

const (
	kindNull kind = iota
	kindText
	kindNumber
	kindBool
	kindList
	kindMap
)

// String returns how an error calls it.
func (k kind) String() string {
	return [...]string{"nothing", "text", "a number", "true or false", "a list", "a mapping"}[k]
}

// node is one value of a file. The nil node is a value that is not there; every method can be called on it.
type node struct {
	file      string
	line, col int    // 1-based
	path      string // of the key
	kind      kind
	text      string // of a scalar, without quotes
	keys      []pair
	items     []*node
	used      bool
}

// pair is one key of a mapping.
type pair struct {
	name string
	val  *node
}

// peek returns the value of a key without marking it as read.
func (n *node) peek(name string) *node {
	if n == nil {
		return nil
	}
	for _, k := range n.keys {
		if k.name == name && k.val.kind != kindNull {
			return k.val
		}
	}
	return nil
}

// get returns the value at a path of keys, nil when it is not there, and marks it as read: its own keys are asked for
// one by one.
func (n *node) get(path ...string) *node {
	for _, name := range path {
		if n = n.peek(name); n == nil {
			return nil
		}
		n.used = true
	}
	return n
}

// use marks a value and all in it as read.
func (n *node) use() {
	if n == nil {
		return
	}
	n.used = true
	for _, k := range n.keys {
		k.val.use()
	}
	for _, item := range n.items {
		item.use()
	}
}

// str returns the text of a scalar, "" of anything else.
func (n *node) str() string {
	if n == nil || n.kind == kindList || n.kind == kindMap {
		return ""
	}
	n.used = true
	return n.text
}

// list returns the values of a list; of a scalar with commas, its parts; nil of anything else.
func (n *node) list() []*node {
	switch {
	case n == nil:
		return nil
	case n.kind == kindList:
		n.used = true
		return n.items
	case n.kind == kindText && n.text != "":
		n.used = true
		var parts []*node
		for part := range strings.SplitSeq(n.text, ",") {
			parts = append(parts, &node{file: n.file, line: n.line, col: n.col, path: n.path, kind: kindText, text: strings.TrimSpace(part), used: true})
		}
		return parts
	}
	return nil
}

// whole returns a whole number from least to most; ok is false when there is none, and then it is an error if there is
// anything.
func (im *importer) whole(n *node, least, most int) (value int, ok bool) {
	if n == nil {
		return 0, false
	}
	value, err := strconv.Atoi(n.str())
	if err != nil || value < least || value > most {
		im.fail(n, "", "want a whole number from "+strconv.Itoa(least)+" to "+strconv.Itoa(most), "correct it in this file")
		return 0, false
	}
	return value, true
}

// parse returns the documents of a YAML or JSON file. What is wrong with it has been recorded.
func (im *importer) parse(f File) []*node {
	top := &node{file: f.Name, line: 1, col: 1}
	switch {
	case len(f.Data) > maxFile:
		im.fail(top, "", "the file has more than 4 MiB", "is this the right file?")
		return nil
	case !utf8.Valid(f.Data):
		im.fail(top, "", "not UTF-8", "save the file as UTF-8")
		return nil
	}
	file, err := config.ParseYAML(bytes.TrimPrefix(f.Data, []byte("\ufeff")))
	if err != nil {
		im.syntax(top, err)
		return nil
	}
	b := &builder{file: f.Name, anchors: map[string]ast.Node{}, left: maxNodes}
	var docs []*node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentGroupType || doc.Body.Type() == ast.NullType {
			continue
		}
		ast.Walk(b, doc.Body)
		docs = append(docs, b.build(doc.Body, "", 0))
	}
	if b.left <= 0 {
		im.fail(top, "", "the file is too deep or has too many values", "aliases that contain aliases grow without end")
		return nil
	}
	if b.twice != nil {
		im.fail(b.twice, "", "the key is there twice", "keep one of them")
		return nil
	}
	if len(docs) == 0 {
		im.fail(top, "", "the file has no content", "is this the right file?")
	}
	return docs
}

// syntax records a parse error, without the excerpt of the library: it may show a secret.
func (im *importer) syntax(top *node, err error) {
	msg := "not YAML, and no command line of a router"
	var y yaml.Error
	if errors.As(err, &y) {
		if tok := y.GetToken(); tok != nil && tok.Position != nil {
			top.line, top.col = max(1, tok.Position.Line), max(1, tok.Position.Column)
		}
	}
	im.fail(top, "", msg, "check the indentation, and that brackets and quotes are closed")
}

// builder turns the library's tree into nodes.
type builder struct {
	file    string
	anchors map[string]ast.Node
	left    int   // nodes that may still be made
	twice   *node // the first key that is there twice
}

// Visit implements ast.Visitor: it remembers anchors.
func (b *builder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil && a.Value != nil {
		b.anchors[a.Name.GetToken().Value] = a.Value
	}
	return b
}

// resolve follows anchors, aliases and tags.
func (b *builder) resolve(n ast.Node) ast.Node {
	for range 16 {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		case *ast.AliasNode:
			n = nil
			if x.Value != nil {
				n = b.anchors[x.Value.GetToken().Value]
			}
		default:
			return n
		}
	}
	return nil
}

func (b *builder) build(raw ast.Node, path string, depth int) *node {
	n := &node{file: b.file, path: path}
	n.line, n.col = place(raw)
	if b.left--; b.left <= 0 || depth > maxDepth {
		b.left = 0
		return n
	}
	switch x := b.resolve(raw).(type) {
	case *ast.StringNode:
		n.kind, n.text = kindText, x.Value
	case *ast.LiteralNode:
		n.kind, n.text = kindText, x.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		n.kind, n.text = kindNumber, x.GetToken().Value
	case *ast.BoolNode:
		n.kind, n.text = kindBool, x.Token.Value
	case *ast.MappingNode:
		n.kind = kindMap
		b.mapping(n, x.Values, depth)
	case *ast.MappingValueNode:
		n.kind = kindMap
		b.mapping(n, []*ast.MappingValueNode{x}, depth)
	case *ast.SequenceNode:
		n.kind = kindList
		for i, item := range x.Values {
			n.items = append(n.items, b.build(item, path+"["+strconv.Itoa(i)+"]", depth+1))
		}
	}
	return n
}

// mapping fills in a mapping's own keys, then those that merge keys (<<) bring and that are not there yet.
func (b *builder) mapping(n *node, values []*ast.MappingValueNode, depth int) {
	var merged []pair
	seen := map[string]bool{}
	for _, v := range values {
		if v.Key.IsMergeKey() {
			from := b.build(v.Value, n.path, depth+1)
			merged = append(merged, from.keys...)
			for _, item := range from.items {
				merged = append(merged, item.keys...)
			}
			continue
		}
		name := b.keyName(v.Key)
		path := name
		if n.path != "" {
			path = n.path + "." + name
		}
		val := b.build(v.Value, path, depth+1)
		if val.kind == kindNull || val.kind == kindMap || val.kind == kindList {
			val.line, val.col = place(v.Key) // where a reader looks for it
		}
		if b.twice == nil && seen[name] {
			b.twice = &node{file: b.file, path: path}
			b.twice.line, b.twice.col = place(v.Key)
		}
		seen[name] = true
		n.keys = append(n.keys, pair{name, val})
	}
	for _, k := range merged {
		if !seen[k.name] {
			seen[k.name] = true
			n.keys = append(n.keys, k)
		}
	}
}

func (b *builder) keyName(key ast.MapKeyNode) string {
	if s, ok := b.resolve(key).(*ast.StringNode); ok {
		return s.Value
	}
	if tok := key.GetToken(); tok != nil {
		return tok.Value
	}
	return ""
}

// place returns where a node starts: of a block mapping, its first key, since its own token is a colon.
func place(n ast.Node) (line, col int) {
	switch x := n.(type) {
	case *ast.MappingNode:
		if !x.IsFlowStyle && len(x.Values) > 0 {
			n = x.Values[0].Key
		}
	case *ast.MappingValueNode:
		n = x.Key
	}
	if n == nil {
		return 1, 1
	}
	tok := n.GetToken()
	if tok == nil || tok.Position == nil {
		return 1, 1
	}
	return max(1, tok.Position.Line), max(1, tok.Position.Column)
}
