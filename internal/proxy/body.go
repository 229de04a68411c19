package proxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
)

const (
	smallChunk = 8 << 10
	bigChunk   = 64 << 10
)

// storage is where request bodies wait until an engine has them: pooled memory up to a budget over all requests, an
// unlinked temporary file per body beyond it. Without a usable directory for such files it is memory all the same.
type storage struct {
	budget int64  // bytes of memory for all bodies
	dir    string // for temporary files; "" means the system's
	used   atomic.Int64
	noFile func(error) // told when no temporary file can be made

	small, big sync.Pool // *[smallChunk]byte, *[bigChunk]byte
}

func newStorage(budget int64, dir string, noFile func(error)) *storage {
	s := &storage{budget: budget, dir: dir, noFile: noFile}
	s.small.New = func() any { return new([smallChunk]byte) }
	s.big.New = func() any { return new([bigChunk]byte) }
	return s
}

// take returns a chunk for a body of which about want bytes are still to come, or nil when the budget is used up.
func (s *storage) take(want int64, force bool) []byte {
	size, budget := int64(bigChunk), s.budget
	if want <= smallChunk {
		size, budget = smallChunk, 2*s.budget // a file for a small body costs more than the body
	}
	if s.used.Add(size) > budget && !force {
		s.used.Add(-size)
		return nil
	}
	if size == smallChunk {
		return s.small.Get().(*[smallChunk]byte)[:]
	}
	return s.big.Get().(*[bigChunk]byte)[:]
}

func (s *storage) give(c []byte) {
	c = c[:cap(c)]
	s.used.Add(-int64(len(c)))
	if len(c) == smallChunk {
		s.small.Put((*[smallChunk]byte)(c))
		return
	}
	s.big.Put((*[bigChunk]byte)(c))
}

// storedBody is one request's body, first written as a whole, then read any number of times. It is freed when it has
// been released and no reader is open.
type storedBody struct {
	store  *storage
	chunks [][]byte // leading part, in memory; the last one is filled up to its len
	first  [1][]byte
	file   *os.File // what follows
	size   int64
	inMem  int64
	refs   atomic.Int32 // readers that are open, plus one until release
	lost   atomic.Bool  // somebody may still look at the memory: it must not be used again
	edit   edit
}

// edit replaces the bytes [from, to) of a body as it is read. The zero value changes nothing.
type edit struct {
	from, to int64
	with     string
}

func (s *storage) newBody() *storedBody {
	b := &storedBody{store: s}
	b.chunks = b.first[:0]
	b.refs.Store(1)
	return b
}

// fill reads r to its end into the body, showing each piece to see. It stops with errTooLarge after max bytes. hint is
// the length that was announced, -1 if none was.
func (b *storedBody) fill(r io.Reader, hint, max int64, see func([]byte) error) error {
	var spill []byte
	defer func() {
		if spill != nil {
			b.store.give(spill)
		}
	}()
	for {
		room, err := b.room(hint, &spill)
		if err != nil {
			return err
		}
		n, err := r.Read(room)
		if n > 0 {
			if b.size+int64(n) > max {
				return errTooLarge
			}
			if e := b.keep(room[:n]); e != nil {
				return e
			}
			if e := see(room[:n]); e != nil {
				return e
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errReadingBody, err)
		}
	}
}

var (
	errTooLarge    = errors.New("reading request body: larger than max_body")
	errReadingBody = errors.New("reading request body")
)

// room is where the next bytes go: the rest of the last chunk, a new chunk, or, once the budget is used up, a scratch
// chunk whose content goes to the file.
func (b *storedBody) room(hint int64, spill *[]byte) ([]byte, error) {
	if *spill != nil {
		return *spill, nil
	}
	if n := len(b.chunks); n > 0 {
		if c := b.chunks[n-1]; len(c) < cap(c) {
			return c[len(c):cap(c)], nil
		}
	}
	want := int64(bigChunk)
	if hint >= 0 {
		want = max(hint-b.size, 0) + 1 // one more, so that the end is seen without another chunk
	} else if b.size == 0 {
		want = smallChunk
	}
	c := b.store.take(want, false)
	if c == nil {
		if err := b.openFile(); err == nil {
			*spill = b.store.take(bigChunk, true)
			return *spill, nil
		}
		c = b.store.take(want, true)
	}
	b.chunks = append(b.chunks, c[:0])
	return c, nil
}

func (b *storedBody) openFile() error {
	f, err := os.CreateTemp(b.store.dir, "pointsman-body-*")
	if err == nil {
		if err = os.Remove(f.Name()); err == nil {
			b.file = f
			return nil
		}
		f.Close()
	}
	b.store.noFile(err)
	return err
}

// keep books p, which lies in the room that was handed out last.
func (b *storedBody) keep(p []byte) error {
	if b.file != nil {
		if _, err := b.file.Write(p); err != nil {
			return fmt.Errorf("storing request body: %w", err)
		}
	} else {
		last := &b.chunks[len(b.chunks)-1]
		*last = (*last)[:len(*last)+len(p)]
		b.inMem += int64(len(p))
	}
	b.size += int64(len(p))
	return nil
}

// length is the number of bytes that a reader gives.
func (b *storedBody) length() int64 {
	return b.size - (b.edit.to - b.edit.from) + int64(len(b.edit.with))
}

// open returns a new reader at the beginning. It fails after the body was freed.
func (b *storedBody) open() (*bodyReader, error) {
	if !b.ref() {
		return nil, errBodyGone
	}
	return &bodyReader{b: b, edit: b.edit, with: b.edit.with}, nil
}

func (b *storedBody) ref() bool {
	for {
		n := b.refs.Load()
		if n <= 0 {
			return false
		}
		if b.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// whole returns the body if it lies in one piece of memory and goes out as it came.
func (b *storedBody) whole() ([]byte, bool) {
	if len(b.chunks) != 1 || b.file != nil || b.edit.to > 0 {
		return nil, false
	}
	return b.chunks[0], true
}

// release gives up the owner's hold. It may be called once only; nil is fine.
func (b *storedBody) release() {
	if b != nil {
		b.unref()
	}
}

func (b *storedBody) unref() {
	if b.refs.Add(-1) != 0 {
		return
	}
	for _, c := range b.chunks {
		if b.lost.Load() {
			b.store.used.Add(-int64(cap(c)))
			continue
		}
		b.store.give(c)
	}
	b.chunks, b.first[0] = nil, nil
	if b.file != nil {
		b.file.Close()
	}
}

// bodyReader reads a stored body once. Read and Close may race, as the transport's do.
type bodyReader struct {
	b    *storedBody
	mu   sync.Mutex
	edit edit   // as it was when the reader was opened
	off  int64  // position in the stored bytes
	with string // what is left of the replacement
	done bool
}

// Read implements io.Reader.
func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return 0, errBodyGone
	}
	e := &r.edit
	if e.to > e.from && r.off >= e.from && r.off < e.to {
		if r.with != "" {
			n := copy(p, r.with)
			r.with = r.with[n:]
			return n, nil
		}
		r.off = e.to
	}
	end := r.b.size
	if e.to > e.from && r.off < e.from {
		end = e.from
	}
	if r.off >= end {
		return 0, io.EOF
	}
	n, err := r.b.readAt(p[:min(int64(len(p)), end-r.off)], r.off)
	r.off += int64(n)
	return n, err
}

// readAt reads some bytes at off, at least one.
func (b *storedBody) readAt(p []byte, off int64) (int, error) {
	if off >= b.inMem {
		n, err := b.file.ReadAt(p, off-b.inMem)
		if n > 0 {
			return n, nil
		}
		return 0, fmt.Errorf("reading stored body: %w", err)
	}
	for _, c := range b.chunks {
		if off < int64(len(c)) {
			return copy(p, c[off:]), nil
		}
		off -= int64(len(c))
	}
	return 0, errBodyGone
}

// Close implements io.Closer.
func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		r.done = true
		r.b.unref()
	}
	return nil
}
