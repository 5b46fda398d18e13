package provider

import (
	"context"
	"io"
)

// Console is an optional interface: the proxy's own output, or the serial
// console of its machine.
type Console interface {
	// Console follows the output from offset bytes after its start; an offset
	// that was rotated away starts at the oldest byte kept, and a negative one
	// at the end. The reader gives io.EOF after the instance ended and all of
	// its output was read, and the context's error when ctx ends.
	Console(ctx context.Context, ref Ref, offset int64) (io.ReadCloser, error)
}
