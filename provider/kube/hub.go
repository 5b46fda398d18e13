package kube

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egress-proxies/egress/provider"
)

var errClosed = provider.Transientf("the provider is closed")

// hub is one list and one watch of all pods of the cluster, however many are
// looked after. It runs while somebody looks after one.
type hub struct {
	p *Provider

	mu      sync.Mutex // guards what follows; no call is made under it
	pods    map[string]*corev1.Pod
	live    bool // pods is what the server has, a moment ago
	watched map[*watched]bool
	cancel  context.CancelFunc // of the loop; nil when none runs
	closing chan struct{}
	closed  bool
	done    sync.WaitGroup
}

// watched is somebody who looks after a pod.
type watched struct {
	name string
	uid  types.UID // of the pod that Get may answer for; guarded by hub.mu
	// news holds the latest that was not taken yet.
	news chan news
}

// news is what happened to a pod of the name. Without a pod it is missing in a
// list.
type news struct {
	pod    *corev1.Pod
	gone   bool
	broken error
}

// tell replaces what was not taken. It is called under hub.mu alone, so that
// the order is that of the server.
func (w *watched) tell(n news) {
	select {
	case <-w.news:
	default:
	}
	w.news <- n
}

func (h *hub) add(name string) (*watched, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed
	}
	if h.watched == nil {
		h.watched = make(map[*watched]bool)
	}
	w := &watched{name: name, news: make(chan news, 1)}
	h.watched[w] = true
	if h.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.cancel = cancel
		h.done.Go(func() { h.run(ctx) })
	}
	return w, nil
}

// keep runs work for the watch, until close at the latest. From now on, Get may
// be answered for the pod. It is false when the hub was closed.
func (h *hub) keep(w *watched, uid types.UID, work func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	w.uid = uid
	h.quitLocked()
	h.done.Go(work)
	return true
}

// remove ends the loop with the last watch.
func (h *hub) remove(w *watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watched, w)
	if len(h.watched) == 0 {
		h.stop()
	}
}

// stop ends the loop; h.mu is held.
func (h *hub) stop() {
	if h.cancel != nil {
		h.cancel()
	}
	h.cancel, h.live, h.pods = nil, false, nil
}

func (h *hub) quit() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.quitLocked()
}

func (h *hub) quitLocked() chan struct{} {
	if h.closing == nil {
		h.closing = make(chan struct{})
	}
	return h.closing
}

func (h *hub) close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.quitLocked())
		h.stop()
	}
	h.mu.Unlock()
	h.done.Wait()
}

// current is the pod that somebody watches, as the watch has it.
func (h *hub) current(name string) (provider.Instance, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pod := h.pods[name]
	if !h.live || pod == nil {
		return provider.Instance{}, false
	}
	for w := range h.watched {
		if w.name == name && w.uid == pod.UID {
			return describe(pod), true
		}
	}
	return provider.Instance{}, false
}

// forget makes Get ask the server for the name: it is about to change.
func (h *hub) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watched {
		if w.name == name {
			w.uid = ""
		}
	}
}

// The methods below are the loop's (loop.go). They do nothing for one that was
// stopped: another may have begun.

func (h *hub) setLive(ctx context.Context, live bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil {
		h.live = live
	}
}

func (h *hub) event(ctx context.Context, pod *corev1.Pod, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if gone {
		delete(h.pods, pod.Name)
	} else {
		h.pods[pod.Name] = pod
	}
	for w := range h.watched {
		if w.name == pod.Name {
			w.tell(news{pod: pod, gone: gone})
		}
	}
}

func (h *hub) snapshot(ctx context.Context, list *corev1.PodList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	h.pods = make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		h.pods[list.Items[i].Name] = &list.Items[i]
	}
	for w := range h.watched {
		w.tell(news{pod: h.pods[w.name]})
	}
}

func (h *hub) broken(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for w := range h.watched {
		w.tell(news{broken: err})
	}
}
