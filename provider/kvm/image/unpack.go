package image

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/egress-proxies/egress/provider"
)

// maxWindow is the largest zstd window we give memory to: that of zstd's
// strongest level, 128 MiB.
const maxWindow = 128 << 20

// unpack removes gzip, xz or zstd, which it knows by their first bytes: names
// in URLs lie. The reader that it returns must be closed; r need not be at its
// end by then.
func unpack(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	magic, err := in.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, broken("gzip", err)
		}
		return unpacked{named{z, "gzip"}, func() {}}, nil
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		z, err := xz.NewReader(in)
		if err != nil {
			return nil, broken("xz", err)
		}
		return unpacked{named{z, "xz"}, func() {}}, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, broken("zstd", err)
		}
		return unpacked{named{z, "zstd"}, z.Close}, nil
	default:
		return io.NopCloser(in), nil
	}
}

// unpacked closes what a decompressor holds.
type unpacked struct {
	io.Reader
	close func()
}

func (u unpacked) Close() error {
	u.close()
	return nil
}

// named classifies the errors of a decompressor.
type named struct {
	io.Reader
	format string
}

func (n named) Read(p []byte) (int, error) {
	count, err := n.Reader.Read(p)
	return count, broken(n.format, err)
}

// broken classifies an error of a decompressor. Data that ends early may be a
// cut that nothing else showed; data that is wrong stays wrong.
func broken(format string, err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return provider.Transientf("the %s data ends early", format)
	default:
		return provider.Permanentf("the %s data is damaged: %w", format, err)
	}
}
