package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// opened is a trace's file, from its beginning.
type opened struct {
	io.Reader
	file *os.File
}

// Close closes the file.
func (o *opened) Close() error { return o.file.Close() }

// openFile opens a file that can be read several times, and unpacks it where it is compressed with gzip.
func openFile(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening the trace: %w", err)
	}
	r, err := unpacked(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("opening the trace: %s: %w", name, err)
	}
	return &opened{r, f}, nil
}

// unpacked returns what r holds, out of gzip's format if it is in that.
func unpacked(f *os.File) (io.Reader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return nil, errors.New("it is a directory")
	case mode&(os.ModeNamedPipe|os.ModeSocket) != 0:
		return nil, errors.New("it is a pipe, and a trace is read several times: write it to a file (one compressed with gzip is read as it is)")
	}
	r := bufio.NewReaderSize(f, 1<<16)
	head, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("unpacking it: %w", err)
		}
		return z, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, errors.New("it is compressed with zstd: unpack it first, or use gzip")
	}
	return r, nil
}

// byteOrderMark is what some programs put before UTF-8.
const byteOrderMark = "\ufeff"

// notText says what a first line is that is no text in UTF-8; nil: it is text.
func notText(line []byte) error {
	switch {
	case bytes.HasPrefix(line, []byte{0xff, 0xfe}), bytes.HasPrefix(line, []byte{0xfe, 0xff}):
		return errors.New("a file in UTF-16: save it as UTF-8")
	case bytes.IndexByte(line, 0) >= 0:
		return errors.New("a binary file")
	}
	return nil
}

// decoding says in words of the file what is wrong with a line of JSON.
func decoding(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("decoding the line: it is %s, want an object", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("decoding the line: %s cannot be %s", kind.Field, kind.Value)
	case err.Error() == "unexpected end of JSON input":
		return fmt.Errorf("decoding the line: it breaks off: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("decoding the line: %w", err)
}
