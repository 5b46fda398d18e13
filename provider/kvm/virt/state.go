package virt

import (
	"context"
	"fmt"

	"github.com/digitalocean/go-libvirt"
)

// Phase is what a machine does.
type Phase int

// The phases. NoState is libvirt's "unknown" and never means off.
const (
	NoState Phase = iota
	Active
	Paused
	ShuttingDown
	Off
)

// Ending is how a machine that is off came to be off.
type Ending int

// The endings. EndUnknown is also a machine that never ran.
const (
	EndUnknown Ending = iota
	EndShutdown
	EndDestroyed
	EndCrashed
)

// State of a machine.
type State struct {
	// Phase is what it does now.
	Phase Phase
	// Ending is set when Phase is Off.
	Ending Ending
	// Reason explains it to a person; it is empty for Active.
	Reason string
}

// DomainState asks what a machine does.
func (h *Host) DomainState(ctx context.Context, d Domain) (State, error) {
	return ask(ctx, h, "DomainGetState", given(d), func(l *libvirt.Libvirt) (State, error) {
		code, reason, err := l.DomainGetState(d.raw(), 0)
		return readState(libvirt.DomainState(code), reason), err
	})
}

func readState(code libvirt.DomainState, reason int32) State {
	switch code {
	case libvirt.DomainRunning, libvirt.DomainBlocked:
		return State{Phase: Active}
	case libvirt.DomainPaused:
		if libvirt.DomainPausedReason(reason) == libvirt.DomainPausedStartingUp {
			return State{Phase: Active}
		}
		return State{Phase: Paused, Reason: pausedReason(libvirt.DomainPausedReason(reason))}
	case libvirt.DomainPmsuspended:
		return State{Phase: Paused, Reason: "the guest suspended itself"}
	case libvirt.DomainShutdown:
		return State{Phase: ShuttingDown, Reason: "the guest is shutting down"}
	case libvirt.DomainShutoff:
		return offState(libvirt.DomainShutoffReason(reason))
	case libvirt.DomainCrashed:
		return State{Phase: Off, Ending: EndCrashed, Reason: "the guest crashed"}
	default:
		return State{Phase: NoState, Reason: fmt.Sprintf("libvirt reports state %d", code)}
	}
}

func pausedReason(reason libvirt.DomainPausedReason) string {
	switch reason {
	case libvirt.DomainPausedIoerror:
		return "paused by an I/O error on its disk: is the pool full?"
	case libvirt.DomainPausedUser:
		return "paused by somebody on the host"
	case libvirt.DomainPausedCrashed:
		return "paused after the guest crashed"
	case libvirt.DomainPausedWatchdog:
		return "paused by its watchdog"
	default:
		return fmt.Sprintf("paused (libvirt's reason %d)", reason)
	}
}

func offState(reason libvirt.DomainShutoffReason) State {
	switch reason {
	case libvirt.DomainShutoffShutdown:
		return State{Phase: Off, Ending: EndShutdown, Reason: "the guest was shut down"}
	case libvirt.DomainShutoffDestroyed:
		return State{Phase: Off, Ending: EndDestroyed, Reason: "the domain was destroyed on its host"}
	case libvirt.DomainShutoffCrashed:
		return State{Phase: Off, Ending: EndCrashed, Reason: "the guest or its QEMU crashed"}
	case libvirt.DomainShutoffFailed:
		return State{Phase: Off, Ending: EndCrashed, Reason: "QEMU failed: see /var/log/libvirt/qemu on the host"}
	case libvirt.DomainShutoffSaved:
		return State{Phase: Off, Ending: EndDestroyed, Reason: "the domain was saved to disk on its host"}
	case libvirt.DomainShutoffDaemon:
		return State{Phase: Off, Ending: EndCrashed, Reason: "libvirtd lost the domain while it restarted"}
	case libvirt.DomainShutoffMigrated:
		return State{Phase: Off, Ending: EndDestroyed, Reason: "the domain was migrated away"}
	default:
		return State{Phase: Off, Ending: EndUnknown, Reason: "the domain is off: was its host restarted?"}
	}
}
