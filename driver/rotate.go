package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// renew hands the credentials of now to the instance and to its probe, when they
// are others than those it has. It is called between two probes, since one that
// is under way would present the old ones to a proxy that wants the new ones. An
// entry that is gone or can't be read leaves what is known.
func (h *handle) renew() {
	if h.task.Auth.Name == "" {
		return
	}
	auth, err := h.credentials.lookup(h.task.Auth)
	if err != nil || h.given != nil && *h.given == auth {
		return
	}
	if h.rotate(auth) {
		h.given = &auth
	}
	h.mu.Lock()
	prober := h.prober
	h.mu.Unlock()
	if prober == nil {
		return
	}
	// Also when the instance did not take them: clients come with these.
	if err := prober.SetCredentials(auth.Username, auth.Password); err != nil {
		h.logger.Warn("credentials can't be used", "name", h.task.Auth.Name, "error", err)
	}
}

// rotate is false when the same is to be tried again. A plugin that was
// restarted does not know what the instance has: it tells it anew, and tells
// nobody.
func (h *handle) rotate(auth provider.Credentials) (settled bool) {
	ref := h.ref()
	err := error(provider.Permanentf("provider %q can't", h.place.name))
	if rotator, ok := h.place.Provider.(provider.Rotator); ok {
		ctx, cancel := context.WithTimeout(h.probing, h.timing.rotate)
		defer cancel()
		err = rotator.Rotate(ctx, ref, auth)
	}
	changed := h.given != nil
	switch {
	case err == nil:
		h.rotationFailed = false
		if changed {
			h.logger.Info("the proxy has new credentials", "instance", ref.Name, "name", h.task.Auth.Name)
			h.events.emit(h.cfg, fmt.Sprintf("Credentials %q were renewed", h.task.Auth.Name))
		}
		return true
	case errors.Is(provider.Classify(err), provider.ErrPermanent):
		if changed {
			h.logger.Warn("the proxy keeps its old credentials until its task is restarted",
				"instance", ref.Name, "name", h.task.Auth.Name, "reason", err)
			h.events.emit(h.cfg, fmt.Sprintf("Credentials %q have changed and the proxy still wants the old ones: "+
				"run `nomad alloc restart %s`: %s", h.task.Auth.Name, h.cfg.AllocID, oneLine(err)))
		}
		return true
	case errors.Is(provider.Classify(err), provider.ErrNotFound), h.probing.Err() != nil:
		return false // it has ended, as its observer will tell
	case !h.rotationFailed:
		h.rotationFailed = true
		h.logger.Warn("the proxy did not take its new credentials, trying on",
			"instance", ref.Name, "name", h.task.Auth.Name, "error", err)
	}
	return false
}

// idle renews the credentials of a proxy that is not probed until ctx ends.
func (h *handle) idle(ctx context.Context) {
	if h.task.Auth.Name == "" {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(h.timing.renew)
	defer ticker.Stop()
	for {
		h.renew()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
