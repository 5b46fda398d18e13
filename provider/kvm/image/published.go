package image

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"io"

	"github.com/egress-proxies/egress/provider"
)

// publishedReader is the file as published: it hashes and counts, and remembers
// the first error, which a decompressor above it would hide.
type publishedReader struct {
	from    io.Reader
	flight  *flight
	digests digests
	err     error
}

func (p *publishedReader) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	p.digests.write(b[:n])
	p.flight.received.Add(int64(n))
	if err != nil && err != io.EOF {
		p.err = err
	}
	return n, err
}

// reason is the true cause of an error that came through a decompressor.
func (p *publishedReader) reason(err error) error {
	if p.err != nil {
		return p.err
	}
	return err
}

// digests are the checksums of a file. SHA-256 is always made: it is shown.
type digests struct{ sha256, sha512 hash.Hash }

func newDigests(s Source) digests {
	d := digests{sha256: sha256.New()}
	if s.SHA512 != "" {
		d.sha512 = sha512.New()
	}
	return d
}

func (d digests) write(b []byte) {
	d.sha256.Write(b)
	if d.sha512 != nil {
		d.sha512.Write(b)
	}
}

// verify compares with what was declared. A difference is permanent: either the
// file or the configuration is wrong, and both stay so.
func (d digests) verify(s Source) error {
	if got := hex.EncodeToString(d.sha256.Sum(nil)); s.SHA256 != "" && got != s.SHA256 {
		return mismatch("sha256", got, s.SHA256)
	}
	if s.SHA512 == "" {
		return nil
	}
	if got := hex.EncodeToString(d.sha512.Sum(nil)); got != s.SHA512 {
		return mismatch("sha512", got, s.SHA512)
	}
	return nil
}

func mismatch(name, got, want string) error {
	return provider.Permanentf("%s of what was fetched is %s: want %s, as configured", name, got, want)
}

func (d digests) short() string { return hex.EncodeToString(d.sha256.Sum(nil))[:idLength] }
