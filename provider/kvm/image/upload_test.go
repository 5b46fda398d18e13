package image

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egress-proxies/egress/provider"
)

// breaking makes the first n uploads break off with err after 1 MiB.
func breaking(p *pool, n int32, err error) {
	var count atomic.Int32
	p.onUpload = func(ctx context.Context, name string, r io.Reader) error {
		if count.Add(1) > n {
			return nil
		}
		if takeErr := p.take(ctx, name, r, 1<<20); takeErr != nil {
			return takeErr
		}
		return err
	}
}

func TestUploadThatBreaksIsDoneAgain(t *testing.T) {
	image := disk(4 << 20)
	server := newWeb(t, image)
	p := newPool("a")
	breaking(p, 2, provider.Transientf("connection lost"))
	p.holds(t, ensure(t, cache(t), server.source(t), p), image)
	if p.uploadCount() != 3 {
		t.Errorf("%d uploads; want 3", p.uploadCount())
	}
}

func TestHostsTroubleIsTold(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want int // uploads
	}{
		{"full", provider.Quotaf("pool default: 12 MiB free"), 1},
		{"refused", provider.Permanentf("no such pool"), 1},
		{"lost", provider.Transientf("connection lost"), uploadTries},
	} {
		server := newWeb(t, disk(4<<20))
		bad, good := newPool("bad"), newPool("good")
		breaking(bad, 100, c.err)
		images := cache(t)
		_, err := images.Ensure(t.Context(), server.source(t), bad)
		if provider.Classify(err) != provider.Classify(c.err) || !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if bad.uploadCount() != c.want {
			t.Errorf("%s: %d uploads; want %d", c.name, bad.uploadCount(), c.want)
		}
		bad.empty(t)
		ensure(t, images, server.source(t), good)
	}
}

func TestEveryStepOfAHostFailsOnce(t *testing.T) {
	image := disk(3 << 20)
	server := newWeb(t, image)
	for _, step := range []string{"list", "create data", "create marker"} {
		p := newPool("a")
		failed := false
		once := func(match bool) error {
			if match && !failed {
				failed = true
				return provider.Permanentf("step failed")
			}
			return nil
		}
		p.onList = func() error { return once(step == "list") }
		p.onCreate = func(name string) error {
			return once(strings.HasSuffix(name, ".ready") == (step == "create marker") && strings.HasPrefix(step, "create"))
		}
		c := cache(t)
		if _, err := c.Ensure(t.Context(), server.source(t), p); err == nil || !strings.Contains(err.Error(), "step failed") {
			t.Errorf("%s: got %v", step, err)
		}
		p.empty(t)
		p.holds(t, ensure(t, c, server.source(t), p), image)
	}
}

func TestUploadThatStopsEarlyIsNeverComplete(t *testing.T) {
	server := newWeb(t, disk(4<<20))
	p := newPool("a")
	p.onUpload = func(context.Context, string, io.Reader) error { return nil }
	early := earlyPool{p}
	_, err := cache(t).Ensure(t.Context(), server.source(t), early)
	if err == nil || !strings.Contains(err.Error(), "before the data did") {
		t.Errorf("got %v", err)
	}
	p.empty(t)
}

// earlyPool says that all went well without reading anything.
type earlyPool struct{ *pool }

func (earlyPool) Upload(context.Context, string, io.Reader) error { return nil }

func TestPartialFilesAreNeverUsed(t *testing.T) {
	image := disk(1 << 20)
	server := newWeb(t, image)
	s := server.source(t)
	s.SHA256 = sha(image)
	c, p := cache(t), newPool("a")
	id := sha(image)[:idLength]
	mine := baseName{id, c.owner, "0000000000000000", Raw}.String()
	others := baseName{id, "ffffffff", "0000000000000000", Raw}.String()
	orphan := marker{baseName{id, c.owner, "1111111111111111", Raw}, 1 << 20, id}.String()
	for _, name := range []string{mine, others, orphan} {
		p.volumes[name] = &fakeVolume{content: image[:100]}
	}
	base := ensure(t, c, s, p)
	if base.Volume.Name == mine || base.Volume.Name == others {
		t.Fatalf("a partial file was used: %s", base.Volume.Name)
	}
	if p.content(mine) != nil {
		t.Error("our own partial file of an earlier life is still there")
	}
	if p.content(others) == nil {
		t.Error("the partial file of another node, which may be at work on it, was removed")
	}
}

func TestFailedCleanupIsMadeUpForLater(t *testing.T) {
	image := disk(3 << 20)
	server := newWeb(t, image)
	p := newPool("a")
	breaking(p, 1, provider.Permanentf("refused"))
	p.onDelete = func(string) error { return provider.Transientf("connection lost") }
	c := cache(t)
	if _, err := c.Ensure(t.Context(), server.source(t), p); err == nil {
		t.Fatal("no error")
	}
	if len(p.names()) != 1 {
		t.Fatalf("want one partial file, got %q", p.names())
	}
	p.onDelete = nil
	p.holds(t, ensure(t, c, server.source(t), p), image)
}

func TestTwoNodesThatFetchAtOnceAgree(t *testing.T) {
	image := disk(1 << 20)
	server := newWeb(t, image)
	p := newPool("a")
	one, two := cache(t), cache(t, func(o *Options) { o.Owner = "there" })
	s := server.source(t)
	s.SHA256 = sha(image)
	both := make(chan struct{})
	var count atomic.Int32
	p.onUpload = func(context.Context, string, io.Reader) error {
		if count.Add(1) == 2 {
			close(both)
		}
		<-both
		return nil
	}
	errs := make(chan error, 2)
	for _, c := range []*Cache{one, two} {
		go func() {
			_, err := c.Ensure(t.Context(), s, p)
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	if a, b := ensure(t, one, s, p), ensure(t, two, s, p); a != b {
		t.Errorf("one uses %s, the other %s", a.Volume.Name, b.Volume.Name)
	}
}
