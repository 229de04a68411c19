package discover

import (
	"context"
	"log/slog"
)

// Decode turns the content of an endpoints file into canonical URLs (scheme://host:port) in the order of the file.
type Decode func(name string, data []byte) ([]string, error)

// File is the endpoints that a file lists.
type File struct {
	path   string
	decode Decode
	log    *slog.Logger
}

// NewFile returns the Discoverer of the file at path. Nothing is read before Run.
func NewFile(path string, decode Decode, log *slog.Logger) *File {
	return &File{path: path, decode: decode, log: log}
}

// Run implements Discoverer.
func (f *File) Run(ctx context.Context, up chan<- []Target) { <-ctx.Done() }
