package body

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
)

// fillBody stores data, read in pieces of any size.
func fillBody(t testing.TB, s *Storage, data []byte, hint int64) *Stored {
	t.Helper()
	b := s.Body()
	var seen bytes.Buffer
	if err := b.Fill(bytes.NewReader(data), hint, 1<<30, func(p []byte) error { seen.Write(p); return nil }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(seen.Bytes(), data) {
		t.Fatalf("the scanner saw %d bytes that differ from the body's %d", seen.Len(), len(data))
	}
	return b
}

func readBody(t testing.TB, b *Stored) []byte {
	t.Helper()
	r, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func randomBytes(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	p := make([]byte, n)
	_, _ = r.Read(p)
	return p
}

// TestStoredBody covers where the bytes lie: one small chunk, many big ones, memory and file, file only.
func TestStoredBody(t *testing.T) {
	for _, budget := range []int64{64 << 20, 3 * bigChunk, 0} {
		s := New(budget, t.TempDir(), func(err error) { t.Error(err) })
		for _, n := range []int{0, 1, smallChunk - 1, smallChunk, smallChunk + 1, bigChunk, bigChunk + 1, 5*bigChunk + 17} {
			data := randomBytes(n)
			for _, hint := range []int64{-1, int64(n)} {
				b := fillBody(t, s, data, hint)
				for range 2 {
					if !bytes.Equal(readBody(t, b), data) {
						t.Fatalf("budget %d, %d bytes, hint %d: read something else", budget, n, hint)
					}
				}
				if int64(n) != b.Length() {
					t.Fatalf("length %d, want %d", b.Length(), n)
				}
				b.Release()
				if left := s.used.Load(); left != 0 {
					t.Fatalf("budget %d, %d bytes: %d bytes still booked after release", budget, n, left)
				}
			}
		}
	}
}

// TestStoredBodyEdit replaces a span at every place and compares with the plain way.
func TestStoredBodyEdit(t *testing.T) {
	s := New(2*bigChunk, t.TempDir(), func(err error) { t.Error(err) })
	data := randomBytes(3*bigChunk + 99)
	for _, from := range []int64{0, 5, smallChunk - 3, bigChunk - 1, bigChunk, 2*bigChunk - 2, int64(len(data)) - 8} {
		for _, with := range []string{"x", "12345678", "a much longer name than before"} {
			b := fillBody(t, s, data, int64(len(data)))
			b.Replace(from, from+8, with)
			want := append(append(append([]byte{}, data[:from]...), with...), data[from+8:]...)
			r, err := b.Open()
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(iotest.HalfReader(r))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("edit at %d: %d bytes, %v; want %d", from, len(got), err, len(want))
			}
			if b.Length() != int64(len(want)) {
				t.Fatalf("length %d, want %d", b.Length(), len(want))
			}
			r.Close()
			b.Release()
		}
	}
}

func TestStoredBodyTooLarge(t *testing.T) {
	s := New(1<<20, t.TempDir(), func(err error) { t.Error(err) })
	for _, n := range []int{100_001, 2_000_000} {
		b := s.Body()
		err := b.Fill(bytes.NewReader(make([]byte, n)), -1, 100_000, func([]byte) error { return nil })
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes with a limit of 100000: %v", n, err)
		}
		b.Release()
	}
	b := s.Body()
	if err := b.Fill(bytes.NewReader(make([]byte, 100_000)), -1, 100_000, func([]byte) error { return nil }); err != nil {
		t.Errorf("a body of exactly the limit: %v", err)
	}
	b.Release()
	if left := s.used.Load(); left != 0 {
		t.Errorf("%d bytes still booked", left)
	}
}

// TestStoredBodyWithoutFiles keeps large bodies in memory when there is no directory for them, and says so.
func TestStoredBodyWithoutFiles(t *testing.T) {
	told := 0
	s := New(bigChunk, t.TempDir()+"/missing", func(error) { told++ })
	data := randomBytes(4 * bigChunk)
	b := fillBody(t, s, data, -1)
	if !bytes.Equal(readBody(t, b), data) {
		t.Error("read something else")
	}
	if told == 0 {
		t.Error("nobody was told that files are missing")
	}
	b.Release()
}

// TestStoredBodyFilesVanish proves that a spilled body leaves nothing behind, whatever happens to the process.
func TestStoredBodyFilesVanish(t *testing.T) {
	dir := t.TempDir()
	s := New(0, dir, func(err error) { t.Error(err) })
	b := fillBody(t, s, randomBytes(2*bigChunk), -1)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files while the body lives: %v, %v", left, err)
	}
	b.Release()
}

// TestStoredBodyReleaseWhileRead closes and releases in any order: memory goes back once, and not under a reader.
func TestStoredBodyReleaseWhileRead(t *testing.T) {
	s := New(64<<20, t.TempDir(), func(err error) { t.Error(err) })
	data := randomBytes(3 * bigChunk)
	var wg sync.WaitGroup
	for range 50 {
		b := fillBody(t, s, data, -1)
		for range 3 {
			r, err := b.Open()
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				got, err := io.ReadAll(r)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("reading beside the release: %d bytes, %v", len(got), err)
				}
				r.Close()
				r.Close()
			})
		}
		b.Release()
	}
	wg.Wait()
	if left := s.used.Load(); left != 0 {
		t.Errorf("%d bytes still booked", left)
	}
}

func TestStoredBodyOpenAfterRelease(t *testing.T) {
	s := New(1<<20, t.TempDir(), func(error) {})
	b := fillBody(t, s, []byte("x"), 1)
	b.Release()
	if _, err := b.Open(); err == nil {
		t.Error("a released body opened")
	}
}

// fullDisk is a file on which no byte finds room.
func fullDisk() (*os.File, error) { return os.OpenFile("/dev/full", os.O_RDWR, 0) }

// TestStoredBodyDiskFull: a body for which there is no room on the disk is refused, and the error names the directory.
func TestStoredBodyDiskFull(t *testing.T) {
	dir := t.TempDir()
	s := New(bigChunk, dir, func(err error) { t.Error(err) })
	s.Create = fullDisk
	b := s.Body()
	err := b.Fill(bytes.NewReader(randomBytes(4*bigChunk)), -1, 1<<30, func([]byte) error { return nil })
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrReading) || errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v, want no space left on %s", err, dir)
	}
	b.Release()
	if left := s.used.Load(); left != 0 {
		t.Errorf("%d bytes still booked", left)
	}
}
