package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/egress-proxies/egress/provider"
)

// fileIDs remembers the digests of files on the node, so that one is read again
// only after it changed.
type fileIDs struct {
	mu  sync.Mutex // guards ids
	ids map[fileState]string
}

// fileState changes whenever a file is written or replaced, as far as the
// kernel tells.
type fileState struct {
	device, inode    uint64
	size             int64
	modified, change syscall.Timespec
}

func stateOf(info fs.FileInfo) fileState {
	s := fileState{size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode, s.modified, s.change = uint64(sys.Dev), sys.Ino, sys.Mtim, sys.Ctim
	}
	return s
}

// known is the id of a file whose digest is at hand, or empty.
func (f *fileIDs) known(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ids[stateOf(info)]
}

// open opens a file and finds its id, reading all of it once if need be.
func (f *fileIDs) open(ctx context.Context, source Source) (*opened, error) {
	file, err := os.OpenFile(source.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hang us
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil, provider.Permanentf("%w", err)
		}
		return nil, provider.Transientf("%w", err)
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, provider.Permanentf("%s: want a regular file", source.Path)
	}
	id := declaredID(source)
	if id == "" {
		if id, err = f.hash(ctx, file, stateOf(info)); err != nil {
			file.Close()
			return nil, err
		}
	}
	return &opened{ReadCloser: &stableFile{file, stateOf(info)}, id: id, total: info.Size(), resumed: func() bool { return false }}, nil
}

// hash reads the file and goes back to its start.
func (f *fileIDs) hash(ctx context.Context, file *os.File, state fileState) (string, error) {
	f.mu.Lock()
	id := f.ids[state]
	f.mu.Unlock()
	if id != "" {
		return id, nil
	}
	sum := sha256.New()
	stable := &stableFile{file, state}
	if _, err := io.Copy(sum, contextReader{ctx, stable}); err != nil {
		return "", err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", provider.Transientf("%w", err)
	}
	id = hex.EncodeToString(sum.Sum(nil))[:idLength]
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids == nil {
		f.ids = map[fileState]string{}
	}
	f.ids[state] = id
	return id, nil
}

// stableFile gives errRedo instead of the end when the file was written to
// while it was read.
type stableFile struct {
	*os.File
	state fileState
}

func (s *stableFile) Read(p []byte) (int, error) {
	n, err := s.File.Read(p)
	if err == io.EOF {
		if info, statErr := s.Stat(); statErr != nil || stateOf(info) != s.state {
			return n, errRedo
		}
	}
	return n, err
}

// contextReader fails with the context's cause once it has ended.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
