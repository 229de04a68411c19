package config

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// Flags is what the command line says. It wins over the file.
type Flags struct {
	// Config is the file's path, "" for none.
	Config string
	// Endpoints, when not empty, make up one pool named "default". A file that has pools of its own is then refused.
	Endpoints []string
	// Listen and Admin replace the file's values unless "".
	Listen, Admin string
}

// Load reads and checks the file at path. The error is an Errors, with everything that is wrong.
func Load(path string) (*Config, error) { return FromFlags(Flags{Config: path}) }

// FromFlags loads the file that the flags name, if any, and applies the flags over it; the whole is checked once. The
// error is an Errors.
func FromFlags(f Flags) (*Config, error) {
	if f.Config == "" {
		return build(f, nil, false)
	}
	data, err := readFile(f.Config)
	if err != nil {
		return nil, err
	}
	return build(f, data, false)
}

// Check is Load that also reads the endpoints files of the pools: serve starts without them and waits, but whoever asks
// whether a configuration is right wants to know. The error is an Errors, and may hold errors of several files.
func Check(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return build(Flags{Config: path}, data, true)
}

// readFile reads a configuration or endpoints file; the error is an Errors.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return nil, Errors{{File: path, Rule: "is a folder", Hint: "name the file in it"}}
	}
	var data []byte
	if err == nil {
		data, err = readSome(path, maxFile+1)
	}
	if err != nil {
		rule, _ := unreadable(err)
		return nil, Errors{{File: path, Rule: rule}}
	}
	return data, nil
}

// Parse checks a configuration that is in memory. name stands for the file in errors, and its folder is what relative
// paths in it are relative to. The error is an Errors.
func Parse(name string, data []byte) (*Config, error) {
	return build(Flags{Config: name}, data, false)
}

// build decodes the file's content, applies the flags and checks what must hold between keys; deep reads the endpoints
// files too.
func build(f Flags, data []byte, deep bool) (*Config, error) {
	c := Default()
	c.Path = f.Config
	d := newDecoder(f.Config)
	if len(data) > 0 {
		root, ok := d.document(data)
		if !ok && len(d.errs) > 0 {
			return nil, d.err()
		}
		if ok {
			d.object(root, topFields(c))
			if root.kind != kindMap {
				return nil, d.err()
			}
		}
	}
	d.flags(f, c)
	d.check(c)
	if deep {
		d.checkFiles(c)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	sortErrors(d.warns)
	c.Warnings = d.warns
	return c, nil
}

// flags applies the command line.
func (d *decoder) flags(f Flags, c *Config) {
	if f.Listen != "" {
		d.seen["listen"] = flagValue("--listen", f.Listen)
		d.address(d.seen["listen"], &c.Listen)
	}
	if f.Admin != "" {
		d.seen["admin"] = flagValue("--admin", f.Admin)
		d.address(d.seen["admin"], &c.Admin)
	}
	if len(f.Endpoints) == 0 {
		return
	}
	if _, both := d.seen["pools"]; both {
		d.failShowing(flagValue("--endpoint", ""), "", "the file "+f.Config+" has pools already",
			"add the endpoint to a pool in the file, or leave --config away")
		return
	}
	d.seen["pools"] = flagValue("--endpoint", "")
	p := DefaultPool("default")
	first := map[string]bool{}
	for _, raw := range f.Endpoints {
		var u string
		v := flagValue("--endpoint", raw)
		if !d.endpoint(v, &u) {
			continue
		}
		if first[u] {
			d.failShowing(v, redactURL(raw), "given twice", "remove one of them")
			continue
		}
		first[u] = true
		p.Endpoints = append(p.Endpoints, u)
	}
	c.Pools = []Pool{p}
}

// ReadEndpoints is ParseEndpoints of the file at path.
func ReadEndpoints(path string) ([]string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return ParseEndpoints(path, data)
}

// ParseEndpoints reads an endpoints file: a YAML list of URLs, a mapping with the one key `endpoints`, or one URL per
// line with # comments. It returns canonical URLs (see Pool.Endpoints) in the order of the file. An explicit empty list
// is no endpoints; a file without any content is an error, since that is what a torn write looks like. The error is an
// Errors.
func ParseEndpoints(name string, data []byte) ([]string, error) {
	d := newDecoder(name)
	var items []value
	if isYAML(data) {
		root, ok := d.document(data)
		if !ok && len(d.errs) > 0 {
			return nil, d.err()
		}
		items = d.endpointList(root)
	} else {
		items = urlLines(name, data)
		if len(items) == 0 {
			d.failShowing(value{file: name}, "", "the file has no content", "write [] if there are no endpoints")
		}
	}
	var urls []string
	first := map[string]int{}
	for _, item := range items {
		var u string
		if !d.endpoint(item, &u) {
			continue
		}
		if first[u] == 0 { // twice is once here: generated lists repeat themselves
			first[u] = item.line
			urls = append(urls, u)
		}
	}
	if len(urls) > maxEndpoints {
		d.failShowing(value{file: name}, "", "more endpoints than a pool can hold", "at most 4096")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return urls, nil
}

// checkFiles reads the endpoints files. What is wrong inside one is reported with its own place, a file that cannot be
// read with the place of the key that names it.
func (d *decoder) checkFiles(c *Config) {
	for i, p := range c.Pools {
		if p.File == "" {
			continue
		}
		var inside Errors
		_, err := ReadEndpoints(p.File)
		if err == nil || !errors.As(err, &inside) {
			continue
		}
		if len(inside) == 1 && inside[0].Line == 0 {
			hint := inside[0].Hint
			if hint == "" {
				hint = "serve waits for it, and has no endpoints until then; a relative path starts at the configuration's folder"
			}
			d.fail(d.seen["pools["+strconv.Itoa(i)+"].file"], inside[0].Rule, hint)
			continue
		}
		d.other = append(d.other, inside...)
	}
}

// endpointList returns the values of a list, bare or under the key endpoints.
func (d *decoder) endpointList(root value) []value {
	var items []value
	read := func(d *decoder, v value) {
		if v.kind != kindList {
			d.wrongKind(v, "a list of URLs")
			return
		}
		items = d.items(v)
	}
	if root.kind != kindMap {
		read(d, root)
		return items
	}
	d.object(root, []field{{"endpoints", read}})
	if _, ok := d.seen["endpoints"]; !ok && len(d.errs) == 0 {
		d.failShowing(root, "", "has no list of endpoints", "")
	}
	return items
}

// isYAML reports whether an endpoints file is YAML (a list, a mapping, JSON) and not one URL per line.
func isYAML(data []byte) bool {
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.ContainsAny(line[:1], "-[{&!%'\"") {
			return true
		}
		_, rest, ok := strings.Cut(line, ":")
		return ok && (rest == "" || rest[0] == ' ') // key: value
	}
	return false
}

// urlLines returns the lines of a plain list.
func urlLines(name string, data []byte) []value {
	var vs []value
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		n++
		text, _, _ := strings.Cut(line, " #")
		text = strings.TrimRight(text, " \t\r\n")
		trimmed := strings.TrimLeft(text, " \t")
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		vs = append(vs, value{file: name, line: n, col: 1 + len(text) - len(trimmed), kind: kindText, text: trimmed})
	}
	return vs
}
