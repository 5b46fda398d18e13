package kube

import (
	"context"
	"errors"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// errShortWatch is a server, or something before it, that ends watches at once.
var errShortWatch = errors.New("the watch ended at once")

// run lists and watches until nobody looks any more. A watch that can't be had
// is told to everybody, and tried again for those who still look, ever slower.
func (h *hub) run(ctx context.Context) {
	timing := h.p.timing
	fresh := wait.Backoff{Duration: timing.rewatch, Factor: 2, Jitter: 0.2, Cap: timing.longest, Steps: math.MaxInt32}
	backoff := fresh
	broken := false
	for ctx.Err() == nil {
		watched, err := h.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if watched {
			backoff, broken = fresh, false
		}
		if err != nil {
			if !broken {
				h.p.env.Logger.Warn("the watch of the pods broke, trying again", "error", err)
			}
			broken = true
			h.broken(ctx, err)
		}
		if pause(ctx, backoff.Step()) != nil {
			return
		}
	}
}

// follow is one list and the watches after it; watched is true when one of them
// lasted. Without an error, list again.
func (h *hub) follow(ctx context.Context) (watched bool, err error) {
	version, err := h.list(ctx)
	if err != nil {
		return false, err
	}
	for {
		began := time.Now()
		before := version
		err = h.stream(ctx, &version)
		lived := version != before || time.Since(began) >= h.p.timing.rewatch
		watched = watched || lived
		switch {
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			return watched, nil
		case err != nil:
			return watched, translate(err, "watch the pods of namespace %s", h.p.settings.Namespace)
		case !lived:
			return watched, translate(errShortWatch, "watch the pods of namespace %s", h.p.settings.Namespace)
		}
		if err := pause(ctx, h.p.timing.rewatch); err != nil {
			return true, err
		}
	}
}

func (h *hub) list(ctx context.Context) (version string, err error) {
	api, err := h.p.client.get()
	if err != nil {
		return "", err
	}
	list, err := h.p.page(ctx, api.CoreV1().Pods(h.p.settings.Namespace), metav1.ListOptions{LabelSelector: selector(h.p.env.Cluster)})
	if err != nil {
		return "", err
	}
	h.snapshot(ctx, list)
	return list.ResourceVersion, nil
}

// stream is one watch from version on, to its end.
func (h *hub) stream(ctx context.Context, version *string) error {
	api, err := h.p.client.get()
	if err != nil {
		return err
	}
	asked := int64(max(1, h.p.timing.watch/time.Second))
	ctx, cancel := context.WithTimeout(ctx, h.p.timing.watch+h.p.timing.overdue)
	defer cancel()
	stream, err := api.CoreV1().Pods(h.p.settings.Namespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: selector(h.p.env.Cluster), ResourceVersion: *version, AllowWatchBookmarks: true, TimeoutSeconds: &asked,
	})
	if err != nil {
		return err
	}
	defer stream.Stop()
	h.setLive(ctx, true)
	defer h.setLive(ctx, false)
	return h.read(ctx, stream, version)
}

// read takes events until the server ends the stream.
func (h *hub) read(ctx context.Context, stream watch.Interface, version *string) error {
	for {
		var event watch.Event
		var open bool
		select {
		case event, open = <-stream.ResultChan():
		case <-ctx.Done():
			return ctx.Err()
		}
		if !open {
			return nil
		}
		switch object := event.Object.(type) {
		case *corev1.Pod:
			*version = object.ResourceVersion
			if event.Type != watch.Bookmark {
				h.event(ctx, object, event.Type == watch.Deleted)
			}
		case *metav1.Status:
			return apierrors.FromObject(object)
		default:
			return errors.New("the API server sent something that isn't a pod")
		}
	}
}
