package virt

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
)

const (
	// callsInFlight bounds the calls that wait for one daemon's answer, those
	// that their callers gave up included. libvirtd works on five of a
	// client's at a time (max_client_requests), so more would only queue.
	callsInFlight = 16
	// callTimeout ends a call of a caller without a deadline. Starting a guest
	// on a loaded host takes seconds; nothing takes minutes.
	callTimeout = 2 * time.Minute
	// openTimeout bounds the first exchange with the daemon.
	openTimeout = 20 * time.Second
	// DefaultURI is the driver for machines of the whole host.
	DefaultURI = "qemu:///system"
)

var (
	errClosed   = errors.New("the connection pool is closed")
	errNoAnswer = errors.New("libvirt did not answer in time")
)

// Options of a Host.
type Options struct {
	// Name of the host in messages.
	Name string
	// Target is how it is reached.
	Target dial.Target
	// URI is the libvirt driver to open; empty is DefaultURI.
	URI string
	// Logger gets one line for each call at debug level, XML at trace level.
	// Nil is silent.
	Logger hclog.Logger
}

// Host is the pooled connection to one host. The first call connects; a
// connection that broke is made again by the next call. All methods are safe
// for concurrent use.
type Host struct {
	options Options
	log     hclog.Logger
	slots   chan struct{}
	wait    sync.WaitGroup // every goroutine of the host
	life    context.Context
	end     context.CancelFunc

	mu      sync.Mutex // guards the fields below; never held across a call
	closed  bool
	link    *dial.Link
	current *session
	pending *pending
}

// pending is a connection being made, for whoever needs one.
type pending struct {
	done    chan struct{}
	session *session
	err     error
}

// New makes a host. It connects to nothing yet.
func New(options Options) *Host {
	if options.URI == "" {
		options.URI = DefaultURI
	}
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	life, end := context.WithCancel(context.Background())
	return &Host{
		options: options,
		log:     options.Logger.With("host", options.Name),
		slots:   make(chan struct{}, callsInFlight),
		life:    life,
		end:     end,
	}
}

// Name of the host.
func (h *Host) Name() string { return h.options.Name }

// Close ends every connection and waits for what runs on them.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	link, current := h.link, h.current
	h.mu.Unlock()
	if current != nil {
		current.close()
	}
	h.end()
	if link != nil {
		link.Close()
	}
	h.wait.Wait()
}

// session gives the connection that all calls share. Whoever needs one while
// it is being made waits for the same one, as long as its own ctx lasts.
func (h *Host) session(ctx context.Context) (*session, error) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, errClosed
	}
	if h.current != nil && h.current.alive() {
		defer h.mu.Unlock()
		return h.current, nil
	}
	p := h.pending
	if p == nil {
		p = &pending{done: make(chan struct{})}
		h.pending = p
		h.wait.Go(func() { h.connect(p) })
	}
	h.mu.Unlock()
	select {
	case <-p.done:
		return p.session, p.err
	case <-ctx.Done():
		return nil, &dial.Error{Reason: provider.Timeout, Err: provider.Transientf("connecting: %w", context.Cause(ctx))}
	}
}

// connect makes the shared connection. It belongs to the host and not to the
// call that needed it first, since others may wait for it too.
func (h *Host) connect(p *pending) {
	p.session, p.err = h.open(h.life)
	h.mu.Lock()
	h.pending = nil
	if p.err == nil {
		h.current = p.session
	}
	closed := h.closed
	h.mu.Unlock()
	if closed && p.err == nil {
		p.session.close()
		p.session, p.err = nil, errClosed
	}
	close(p.done)
}

// open makes a new connection to the daemon, over the link that stands or over
// a new one.
func (h *Host) open(ctx context.Context) (*session, error) {
	link, err := h.linked(ctx)
	if err != nil {
		return nil, err
	}
	return newSession(ctx, link, libvirt.ConnectURI(h.options.URI))
}

func (h *Host) linked(ctx context.Context) (*dial.Link, error) {
	h.mu.Lock()
	link := h.link
	h.mu.Unlock()
	if link != nil {
		select {
		case <-link.Done():
			link.Close()
		default:
			return link, nil
		}
	}
	fresh, err := dial.Connect(ctx, h.options.Target)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	if h.closed || h.link != link { // closed, or somebody else was faster
		other, closed := h.link, h.closed
		h.mu.Unlock()
		fresh.Close()
		if closed {
			return nil, errClosed
		}
		return other, nil
	}
	h.link = fresh
	h.mu.Unlock()
	return fresh, nil
}
