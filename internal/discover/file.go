package discover

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"
)

// lookEvery is how often a file is read. A changed file is used when two reads in a row gave the same bytes, so that a
// writer that is still at work is not taken at its word; a change is in force after 250 to 500 ms.
const lookEvery = 250 * time.Millisecond

// maxFile is the largest endpoints file read.
const maxFile = 1 << 20

// Decode turns the content of an endpoints file into canonical URLs (scheme://host:port) in the order of the file. An
// error leaves the set as it was.
type Decode func(name string, data []byte) ([]string, error)

// File is the endpoints that a file lists. It reads the file's bytes instead of watching its time stamps or inode:
// a few kilobytes four times a second cost nothing, and it works on every file system, with the symbolic links that
// Kubernetes swaps, and with editors that write in place.
type File struct {
	Condition
	path   string
	decode Decode
	log    *slog.Logger
}

// NewFile returns the Discoverer of the file at path. Nothing is read before Run.
func NewFile(path string, decode Decode, log *slog.Logger) *File {
	return &File{path: path, decode: decode, log: log}
}

// Run implements Discoverer. The set has the order of the file.
func (f *File) Run(ctx context.Context, up chan<- []Target) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w := fileWatch{File: f, trouble: NewComplaint(f.log, &f.Condition, "file", f.path), first: true}
	for {
		if w.look(time.Now()) && !send(ctx, up, w.set) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// fileWatch is what one Run remembers between looks.
type fileWatch struct {
	*File
	trouble Complaint
	first   bool     // nothing was read yet
	set     []Target // the last good one, nil before there was one
	used    []byte   // the content that it came from
	seen    []byte   // the content at the look before, nil when that failed
}

// look reads the file and reports whether there is a set that was not sent.
func (w *fileWatch) look(now time.Time) bool {
	data, err := w.read()
	if err != nil {
		w.trouble.Broken(err, len(w.set), now)
		w.seen = nil
		return false
	}
	steady := w.first || bytes.Equal(data, w.seen)
	w.first, w.seen = false, data
	if !steady {
		return false
	}
	if w.set != nil && bytes.Equal(data, w.used) {
		w.trouble.Whole(now)
		return false
	}
	urls, err := w.decode(w.path, data)
	if err != nil {
		w.trouble.Broken(err, len(w.set), now)
		return false
	}
	w.trouble.Whole(now)
	next := Targets(urls)
	changed := w.set == nil || !slices.Equal(next, w.set)
	w.set, w.used = next, data
	return changed
}

// read returns the file's bytes, never nil without an error.
func (f *File) read() ([]byte, error) {
	info, err := os.Stat(f.path) // before opening: a pipe would block
	if err != nil {
		return nil, fmt.Errorf("reading endpoints: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading endpoints %s: not a regular file", f.path)
	}
	r, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("reading endpoints: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading endpoints: %w", err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("reading endpoints %s: more than %d bytes", f.path, maxFile)
	}
	return append([]byte{}, data...), nil
}
