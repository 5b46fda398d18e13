package virt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
)

func silent(*daemon, net.Conn, packet) bool { return false }

func refuse(d *daemon, conn net.Conn, p packet) bool {
	d.fail(conn, p, libvirt.ErrNoDomain, "Domain not found")
	return true
}

// A daemon that hangs must not pin a task (case 37).
func TestCancelledCallReturns(t *testing.T) {
	d := newDaemon(t, silent)
	h := d.host(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := h.LookupDomain(ctx, "eg-x")
	if !errors.Is(err, context.DeadlineExceeded) || provider.Classify(err) != provider.ErrTransient {
		t.Errorf("lookup on a hung daemon: %v, want the deadline as a transient error", err)
	}
	if errors.Is(err, provider.ErrNotFound) {
		t.Errorf("a hung daemon reads as a missing machine: %v", err)
	}
}

func TestWaitingForABusyHostEndsWithTheCallersDeadline(t *testing.T) {
	d := newDaemon(t, silent)
	h := d.host(t, nil)
	occupied, release := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for range callsInFlight {
		wait.Go(func() { _, _ = h.LookupDomain(occupied, "eg-x") }) // it is only to wait
	}
	until(t, func() bool { return d.seen() == callsInFlight })
	release()
	wait.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := h.LookupDomain(ctx, "eg-y")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "calls wait for the daemon's answer already") {
		t.Errorf("call on a busy host: %v, want the deadline and what is busy", err)
	}
	if d.seen() != callsInFlight {
		t.Errorf("%d calls reached the hung daemon, want at most %d", d.seen(), callsInFlight)
	}
}

func TestOneConnectionForAllCalls(t *testing.T) {
	d := newDaemon(t, refuse)
	h := d.host(t, nil)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if _, err := h.LookupDomain(t.Context(), "eg-x"); !errors.Is(err, provider.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if n := d.connections(); n != 1 {
		t.Errorf("%d connections for 20 calls at once, want 1", n)
	}
}

func TestALibvirtErrorKeepsTheConnection(t *testing.T) {
	d := newDaemon(t, refuse)
	h := d.host(t, nil)
	for range 3 {
		_, err := h.LookupDomain(t.Context(), "eg-x")
		if !errors.Is(err, provider.ErrNotFound) || !strings.Contains(err.Error(), "(ErrNoDomain)") || !strings.Contains(err.Error(), "host a: DomainLookupByName") {
			t.Fatalf("lookup: %v, want ErrNotFound with host, call and code", err)
		}
	}
	if n := d.connections(); n != 1 {
		t.Errorf("%d connections after three libvirt errors, want 1", n)
	}
}

// libvirtd restarts: the next call works (case 7).
func TestATransportErrorRedials(t *testing.T) {
	d := newDaemon(t, refuse)
	h := d.host(t, nil)
	for round := range 3 {
		if _, err := h.LookupDomain(t.Context(), "eg-x"); !errors.Is(err, provider.ErrNotFound) {
			t.Fatalf("round %d: %v", round, err)
		}
		d.cut()
		until(t, func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return !h.current.alive()
		})
	}
	if n := d.connections(); n != 3 {
		t.Errorf("%d connections over two restarts, want 3", n)
	}
}

// A health check may give up, but the connection is everybody's (case 37).
func TestGivingUpLeavesTheConnectionToOthers(t *testing.T) {
	asked, goOn := make(chan struct{}), make(chan struct{})
	d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
		if p.procedure == procVolumeXML {
			close(asked)
			<-goOn
		}
		d.fail(conn, p, libvirt.ErrNoDomain, "answer")
		return true
	})
	h := d.host(t, nil)
	slow := make(chan error, 1)
	go func() {
		_, err := h.Volume(t.Context(), "p", "v")
		slow <- err
	}()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := h.Versions(ctx); err == nil {
		t.Error("the check behind a slow call: want its deadline")
	}
	close(goOn)
	if err := <-slow; CodeName(err) != "ErrNoDomain" {
		t.Errorf("the slow call got %v, want the daemon's answer", err)
	}
	if n := d.connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestErrorClasses(t *testing.T) {
	h := New(Options{Name: "a"})
	t.Cleanup(h.Close)
	for _, test := range []struct {
		err  error
		want error
	}{
		{errors.New("eof"), provider.ErrTransient},
		{libvirt.ErrInterrupted, provider.ErrTransient},
		{libvirt.ErrUnsupported, provider.ErrPermanent},
		{libvirt.Error{Code: uint32(libvirt.ErrInternalError), Message: "client socket is closed"}, provider.ErrTransient},
		{libvirt.Error{Code: uint32(libvirt.ErrSystemError), Message: "cannot extend file: No space left on device"}, provider.ErrQuotaExceeded},
		{libvirt.Error{Code: uint32(libvirt.ErrInternalError), Message: "qemu: cannot set up guest memory 'pc.ram': Cannot allocate memory"}, provider.ErrQuotaExceeded},
		{libvirt.Error{Code: uint32(libvirt.ErrNoStorageVol), Message: "no volume"}, provider.ErrNotFound},
		// A missing pool or network is not a missing machine.
		{libvirt.Error{Code: uint32(libvirt.ErrNoStoragePool), Message: "no pool"}, provider.ErrPermanent},
		{libvirt.Error{Code: uint32(libvirt.ErrNoNetwork), Message: "no network"}, provider.ErrPermanent},
		{libvirt.Error{Code: uint32(libvirt.ErrXMLError), Message: "bad"}, provider.ErrPermanent},
		{&dial.Error{Reason: provider.Unauthorized, Err: provider.Permanentf("key")}, provider.ErrPermanent},
		{context.Canceled, provider.ErrTransient},
	} {
		got := h.translate("Call", test.err)
		if provider.Classify(got) != test.want {
			t.Errorf("%v is classed %v, want %v", test.err, provider.Classify(got), test.want)
		}
		if !errors.Is(got, test.err) {
			t.Errorf("%v hides its cause %v", got, test.err)
		}
	}
}

// taken is what a host keeps of an upload: a hole is written as zeros.
type taken struct {
	mu    sync.Mutex
	data  bytes.Buffer
	sent  int
	holes int
}

func (f *taken) daemon(t *testing.T) *daemon {
	return newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case p.kind == typeStreamHole:
			n := int(uint64(p.payload[4])<<24 | uint64(p.payload[5])<<16 | uint64(p.payload[6])<<8 | uint64(p.payload[7]))
			f.data.Write(make([]byte, n))
			f.holes++
		case p.kind == 3 && p.status == statusContinue:
			f.data.Write(p.payload)
			f.sent += len(p.payload)
		case p.kind == 3:
			return d.finish(conn, p)
		default:
			d.reply(conn, p, nil)
		}
		return true
	})
}

func TestUploadSendsNoZeros(t *testing.T) {
	random := bytes.Repeat([]byte("data"), block/4)
	hole := make([]byte, 5*block)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, test := range map[string]struct {
		content     []byte
		sent, holes int
	}{
		"empty":          {nil, 0, 0},
		"zeros":          {hole, 0, 1},
		"data":           {random, block, 0},
		"ends in a hole": {join(random, hole, hole, hole, hole), block, 1},
		"hole at first":  {join(hole, random), block, 1},
		"odd end":        {join(random, hole, []byte("x")), block + 1, 1},
		"odd zeros":      {join(random, hole, []byte{0, 0, 0}), block, 1},
		"alternating":    {join(random, hole, random, hole, random), 3 * block, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var f taken
			h := f.daemon(t).host(t, nil)
			// One byte at a time, as bad as a network can be.
			if err := h.Upload(t.Context(), "p", "v", io.MultiReader(bytes.NewReader(test.content))); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if !bytes.Equal(f.data.Bytes(), test.content) {
				t.Errorf("the host has %d bytes that differ from the %d sent", f.data.Len(), len(test.content))
			}
			if f.sent != test.sent || f.holes != test.holes {
				t.Errorf("sent %d bytes and %d holes, want %d and %d", f.sent, f.holes, test.sent, test.holes)
			}
		})
	}
}

func TestUploadFailures(t *testing.T) {
	broken := errors.New("the server cut the download")
	t.Run("source", func(t *testing.T) {
		var f taken
		h := f.daemon(t).host(t, nil)
		err := h.Upload(t.Context(), "p", "v", io.MultiReader(strings.NewReader("begin"), failing{broken}))
		if !errors.Is(err, broken) {
			t.Errorf("upload of a source that fails: %v, want its error", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		var f taken
		h := f.daemon(t).host(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		stalled, writer := io.Pipe()
		defer writer.Close()
		if err := h.Upload(ctx, "p", "v", stalled); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("upload of a source that stalls: %v, want the deadline", err)
		}
	})
	t.Run("no space", func(t *testing.T) {
		d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
			if p.kind != 0 {
				d.fail(conn, p, libvirt.ErrSystemError, "cannot write: No space left on device")
				return true
			}
			d.reply(conn, p, nil)
			return true
		})
		err := d.host(t, nil).Upload(t.Context(), "p", "v", strings.NewReader("content"))
		if provider.Classify(err) != provider.ErrQuotaExceeded {
			t.Errorf("upload into a full pool: %v, want ErrQuotaExceeded", err)
		}
	})
	t.Run("connection", func(t *testing.T) {
		d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
			if p.kind != 0 {
				_ = conn.Close()
				return true
			}
			d.reply(conn, p, nil)
			return true
		})
		err := d.host(t, nil).Upload(t.Context(), "p", "v", strings.NewReader("content"))
		if err == nil || provider.Classify(err) != provider.ErrTransient {
			t.Errorf("upload over a connection that breaks: %v, want ErrTransient", err)
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func until(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true within 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestLateAnswersAreNobodys is for the race detector: answers come at the very
// moment at which their callers give up.
func TestLateAnswersAreNobodys(t *testing.T) {
	d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
		time.Sleep(time.Duration(p.serial%8) * 100 * time.Microsecond)
		return refuse(d, conn, p)
	})
	h := d.host(t, nil)
	for range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Microsecond)
		if found, err := h.LookupDomain(ctx, "eg-x"); err == nil || found != (Domain{}) {
			t.Fatalf("%+v, %v, want an error and nothing else", found, err)
		}
		if active, err := h.NetworkActive(ctx, "default"); err == nil || active {
			t.Fatalf("%v, %v, want an error and nothing else", active, err)
		}
		cancel()
	}
}
