package supervise

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
)

// OutputReader reads the captured output by offset, across the files.
type OutputReader struct {
	dir    string
	offset int64
	file   *os.File
	start  int64
}

// NewOutputReader starts at offset bytes after the start of the output. An
// offset that was rotated away starts at the oldest byte kept, a negative one
// or one beyond the end at the end.
func NewOutputReader(dir string, offset int64) (*OutputReader, error) {
	starts, err := outputStarts(dir)
	if err != nil {
		return nil, err
	}
	if len(starts) == 0 {
		return &OutputReader{dir: dir, offset: max(offset, 0)}, nil
	}
	end := starts[len(starts)-1]
	if info, err := os.Stat(outputName(dir, end)); err == nil {
		end += info.Size()
	}
	if offset < 0 || offset > end {
		offset = end
	}
	return &OutputReader{dir: dir, offset: offset}, nil
}

// Read gives what is there, and io.EOF where nothing more is there yet: the
// caller knows whether more can come.
func (r *OutputReader) Read(p []byte) (int, error) {
	for {
		if r.file != nil {
			n, err := r.file.ReadAt(p, r.offset-r.start)
			r.offset += int64(n)
			if n > 0 || (err != nil && !errors.Is(err, io.EOF)) {
				return n, ignoreEOF(err)
			}
		}
		moved, err := r.advance()
		if err != nil {
			return 0, err
		}
		if !moved {
			return 0, io.EOF
		}
	}
}

// advance opens the file that holds the offset, unless it is open already.
func (r *OutputReader) advance() (moved bool, err error) {
	starts, err := outputStarts(r.dir)
	if err != nil || len(starts) == 0 {
		return false, err
	}
	at, found := slices.BinarySearch(starts, r.offset)
	if !found {
		at--
	}
	if at < 0 { // rotated away
		at, r.offset = 0, starts[0]
	}
	if r.file != nil && r.start == starts[at] {
		return r.skipGap(starts, at)
	}
	file, err := os.Open(outputName(r.dir, starts[at]))
	if errors.Is(err, fs.ErrNotExist) { // rotated away since the listing
		return true, nil
	}
	if err != nil {
		return false, err
	}
	err = r.Close()
	r.file, r.start = file, starts[at]
	return true, err
}

// skipGap goes to the next file when this one was read to its end and is not
// the last: there can be a gap after a supervisor that failed to write.
func (r *OutputReader) skipGap(starts []int64, at int) (bool, error) {
	info, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	if at+1 == len(starts) || r.offset < r.start+info.Size() {
		return false, nil
	}
	r.offset = starts[at+1]
	return true, nil
}

// Offset is the position of the next byte.
func (r *OutputReader) Offset() int64 { return r.offset }

// Close frees the open file.
func (r *OutputReader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
