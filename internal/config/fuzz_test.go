package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// No file makes the parser panic or hang; what is refused has places and rules; what is accepted reads the same after it was
// written out.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/good/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatalf("no seeds in %s (%v)", pattern, err)
		}
		for _, p := range paths {
			data, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("testdata/good/x.yaml", data)
		if err != nil {
			var all Errors
			if !errors.As(err, &all) || len(all) == 0 {
				t.Fatalf("the error is a %T", err)
			}
			for _, e := range all {
				if e.Line < 1 || e.Column < 1 || e.Rule == "" || strings.ContainsAny(e.Error(), "\n\r") {
					t.Errorf("odd error %q", e.Error())
				}
			}
			return
		}
		for i := range c.Pools {
			// Written paths are relative to the working directory, read ones to the file's folder.
			c.Pools[i].APIKeyFile, c.Pools[i].APIKey = "", Secret{}
			if c.Pools[i].File != "" {
				c.Pools[i].File = "endpoints"
			}
		}
		text := c.YAML()
		again, err := Parse("x.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v\nread from\n%s\nwritten as\n%s", err, data, text)
		}
		again.Path, again.Warnings, c.Warnings = c.Path, nil, nil
		if diff := cmp.Diff(c, again, cmp.AllowUnexported(Secret{})); diff != "" {
			t.Errorf("changed by the round trip:\n%s\n%s", diff, text)
		}
	})
}

// Whatever an endpoints file holds, the URLs that come out are canonical: reading them again changes nothing.
func FuzzParseEndpoints(f *testing.F) {
	paths, err := filepath.Glob("testdata/endpoints/*.in")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no seeds (%v)", err)
	}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		urls, err := ParseEndpoints("endpoints", data)
		if err != nil {
			return
		}
		if len(urls) == 0 {
			return
		}
		again, err := ParseEndpoints("endpoints", []byte(strings.Join(urls, "\n")))
		if err != nil || !slices.Equal(again, urls) {
			t.Errorf("%q read again is %q (%v)", urls, again, err)
		}
	})
}
