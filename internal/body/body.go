// Package body keeps request bodies until an endpoint has them: in pooled memory up to a budget over all requests, in unlinked
// temporary files beyond it. It reads compressed ones for routing, with bounds on what they unpack to.
//
// It does not know what a body means, nor who wants it. A Stored belongs to one request; its readers may run in other
// goroutines, and memory goes back when the last one has closed.
package body

import (
	"cmp"
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

// Storage is where request bodies wait until an endpoint has them: pooled memory up to a budget over all requests, an
// unlinked temporary file per body beyond it. Without a usable directory for such files it is memory all the same. Create it
// with New. It may be used by any number of goroutines.
type Storage struct {
	budget int64  // bytes of memory for all bodies
	dir    string // for temporary files
	used   atomic.Int64
	noFile func(error) // told when no temporary file can be made

	// Create makes the file of one body. New sets it to what makes an unlinked one in the directory.
	Create func() (*os.File, error)

	small, big sync.Pool // *[smallChunk]byte, *[bigChunk]byte
}

// New returns a storage with a budget of bytes in memory, small bodies twice that. dir is for temporary files, "" meaning the
// system's. noFile is told each time that none can be made.
func New(budget int64, dir string, noFile func(error)) *Storage {
	s := &Storage{budget: budget, dir: cmp.Or(dir, os.TempDir()), noFile: noFile}
	s.Create = s.create
	s.small.New = func() any { return new([smallChunk]byte) }
	s.big.New = func() any { return new([bigChunk]byte) }
	return s
}

// create makes a file that is gone when it is closed, or when the process ends.
func (s *Storage) create() (*os.File, error) {
	f, err := os.CreateTemp(s.dir, "pointsman-body-*")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Used returns the bytes of memory that bodies hold now.
func (s *Storage) Used() int64 { return s.used.Load() }

// take returns a chunk for a body of which about want bytes are still to come, or nil when the budget is used up.
func (s *Storage) take(want int64, force bool) []byte {
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

func (s *Storage) give(c []byte) {
	c = c[:cap(c)]
	s.used.Add(-int64(len(c)))
	if len(c) == smallChunk {
		s.small.Put((*[smallChunk]byte)(c))
		return
	}
	s.big.Put((*[bigChunk]byte)(c))
}

// Stored is one request's body, first written as a whole, then read any number of times. It is freed when it has
// been released and no reader is open.
type Stored struct {
	store  *Storage
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

// Body returns a new, empty body. It must be released once.
func (s *Storage) Body() *Stored {
	b := &Stored{store: s}
	b.chunks = b.first[:0]
	b.refs.Store(1)
	return b
}

// Fill reads r to its end into the body, showing each piece to see. It stops with ErrTooLarge after max bytes. hint is
// the length that was announced, -1 if none was.
func (b *Stored) Fill(r io.Reader, hint, max int64, see func([]byte) error) error {
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
				return ErrTooLarge
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
			return fmt.Errorf("%w: %w", ErrReading, err)
		}
	}
}

// The ways in which reading a body fails that are not our own disk's.
var (
	ErrTooLarge = errors.New("reading request body: larger than max_body")
	ErrReading  = errors.New("reading request body") // the client went away, or sent something that is no HTTP body
)

var errGone = errors.New("reading stored body: already released")

// Write appends p, a piece that somebody else read, showing it to see. hint and max are those of Fill.
func (b *Stored) Write(p []byte, hint, max int64, see func([]byte) error) error {
	if b.size+int64(len(p)) > max {
		return ErrTooLarge
	}
	var spill []byte
	defer func() {
		if spill != nil {
			b.store.give(spill)
		}
	}()
	for rest := p; len(rest) > 0; {
		if b.file != nil { // it needs no scratch
			if err := b.keep(rest); err != nil {
				return err
			}
			break
		}
		room, err := b.room(hint, &spill)
		if err != nil {
			return err
		}
		n := copy(room, rest)
		if err := b.keep(room[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return see(p)
}

// Size is the number of bytes that were stored.
func (b *Stored) Size() int64 { return b.size }

// Replace makes readers that are opened from now on give with in place of the stored bytes [from, to). It takes the place of the
// Replace before; from 0 to 0 replaces nothing.
func (b *Stored) Replace(from, to int64, with string) { b.edit = edit{from: from, to: to, with: with} }

// Replaced reports whether readers give something else than what was stored.
func (b *Stored) Replaced() bool { return b.edit.to > 0 }

// room is where the next bytes go: the rest of the last chunk, a new chunk, or, once the budget is used up, a scratch
// chunk whose content goes to the file.
func (b *Stored) room(hint int64, spill *[]byte) ([]byte, error) {
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

func (b *Stored) openFile() error {
	f, err := b.store.Create()
	if err != nil {
		b.store.noFile(err)
		return err
	}
	b.file = f
	return nil
}

// keep books p, which lies in the room that was handed out last.
func (b *Stored) keep(p []byte) error {
	if b.file != nil {
		if _, err := b.file.Write(p); err != nil {
			return fmt.Errorf("storing request body in %s: %w", b.store.dir, err)
		}
	} else {
		last := &b.chunks[len(b.chunks)-1]
		*last = (*last)[:len(*last)+len(p)]
		b.inMem += int64(len(p))
	}
	b.size += int64(len(p))
	return nil
}

// Length is the number of bytes that a reader gives.
func (b *Stored) Length() int64 {
	return b.size - (b.edit.to - b.edit.from) + int64(len(b.edit.with))
}

// Open returns a new reader at the beginning. It fails after the body was freed.
func (b *Stored) Open() (*Reader, error) {
	if !b.Hold() {
		return nil, errGone
	}
	return &Reader{b: b, edit: b.edit, with: b.edit.with}, nil
}

// Hold keeps the body's memory until Unhold, and returns false after it was freed.
func (b *Stored) Hold() bool {
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

// Whole returns the body if it lies in one piece of memory and goes out as it came.
func (b *Stored) Whole() ([]byte, bool) {
	if len(b.chunks) != 1 || b.file != nil || b.edit.to > 0 {
		return nil, false
	}
	return b.chunks[0], true
}

// Release gives up the owner's hold. It may be called once only; nil is fine.
func (b *Stored) Release() {
	if b != nil {
		b.Unhold()
	}
}

// Lose says that somebody may look at the body's memory even after it was freed: it is not used again.
func (b *Stored) Lose() { b.lost.Store(true) }

// Unhold ends a Hold.
func (b *Stored) Unhold() {
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

// Reader reads a stored body once. Read and Close may race, as the transport's do.
type Reader struct {
	b    *Stored
	mu   sync.Mutex
	edit edit   // as it was when the reader was opened
	off  int64  // position in the stored bytes
	with string // what is left of the replacement
	done bool
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return 0, errGone
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
func (b *Stored) readAt(p []byte, off int64) (int, error) {
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
	return 0, errGone
}

// Close implements io.Closer.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		r.done = true
		r.b.Unhold()
	}
	return nil
}
