package config

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
func FromFlags(f Flags) (*Config, error) { return nil, Errors{{File: f.Config, Rule: "not read"}} }

// Parse checks a configuration that is in memory. name stands for the file in errors, and its folder is what relative
// paths in it are relative to. The error is an Errors.
func Parse(name string, data []byte) (*Config, error) { return nil, Errors{{File: name, Rule: "not read"}} }

// ParseEndpoints reads an endpoints file: a YAML list of URLs, a mapping with the one key `endpoints`, or one URL per
// line with # comments. It returns canonical URLs (see Pool.Endpoints) in the order of the file. An explicit empty list
// is no endpoints; a file without any content is an error, since that is what a torn write looks like. The error is an
// Errors.
func ParseEndpoints(name string, data []byte) ([]string, error) { return nil, Errors{{File: name, Rule: "not read"}} }
