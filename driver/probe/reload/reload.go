// Package reload keeps the parsed content of a file, and parses it again when
// the file has changed.
package reload

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxSize keeps a wrong path (a disk image, /dev/zero) from filling memory.
const maxSize = 8 << 20

// File is the parsed content of one file. It is safe for concurrent use.
type File[T any] struct {
	path  string
	parse func(content []byte) (T, error)

	// mu guards what follows.
	mu    sync.Mutex
	seen  os.FileInfo
	value T
	good  bool
	err   error
}

// NewFile is a file that nothing was read of yet.
func NewFile[T any](path string, parse func(content []byte) (T, error)) *File[T] {
	return &File[T]{path: path, parse: parse}
}

// Get returns the content as of now. After a change that can't be read or
// parsed it returns the last good content together with the error, since a file
// that is being replaced should not take down what worked; ok is false when
// there never was a good one. The error names the path.
func (f *File[T]) Get() (value T, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen, f.err = nil, err
		return f.value, f.good, err
	}
	if f.seen != nil && unchanged(f.seen, info) {
		return f.value, f.good, f.err
	}
	f.seen = info
	f.err = f.load()
	return f.value, f.good, f.err
}

func (f *File[T]) load() error {
	content, err := read(f.path)
	if err != nil {
		return err
	}
	value, err := f.parse(content)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.value, f.good = value, true
	return nil
}

// unchanged also compares the file's identity: a rename over the path within
// the resolution of the time stamps is a change.
func unchanged(before, now os.FileInfo) bool {
	return os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}

func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxSize {
		return nil, fmt.Errorf("%s: is larger than %d MiB", path, maxSize>>20)
	}
	return content, nil
}

// Roots is a PEM file of certificates to trust beside those of the system.
func Roots(path string) *File[*x509.CertPool] {
	return NewFile(path, func(content []byte) (*x509.CertPool, error) {
		pool, err := x509.SystemCertPool()
		if err != nil {
			// A machine without certificates of its own trusts the file alone.
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(content) {
			return nil, errors.New("has no certificate in PEM form")
		}
		return pool, nil
	})
}
