package virt

import (
	"errors"
	"fmt"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
)

// CodeName is the name of the libvirt error code in err, such as
// "VIR_ERR_NO_DOMAIN" in libvirt's documentation, spelled ErrNoDomain; empty
// when err is not an answer of libvirt.
func CodeName(err error) string {
	var answered libvirt.Error
	if !errors.As(err, &answered) {
		return ""
	}
	return libvirt.ErrorNumber(answered.Code).String()
}

// Is says whether err is libvirt's answer with the code.
func Is(err error, code libvirt.ErrorNumber) bool {
	var answered libvirt.Error
	return errors.As(err, &answered) && answered.Code == uint32(code)
}

// translate is the one place where libvirt's errors get their class. The host
// and the call are named here and nowhere else.
func (h *Host) translate(rpc string, err error) error {
	if err == nil {
		return nil
	}
	text := fmt.Errorf("host %s: %s: %w", h.options.Name, rpc, err)
	var answered libvirt.Error
	if errors.As(err, &answered) {
		text = fmt.Errorf("host %s: %s: %w (%s)", h.options.Name, rpc, err, CodeName(err))
		return &provider.Error{Class: class(answered), Err: text}
	}
	var unreachable *dial.Error
	switch {
	case errors.As(err, &unreachable):
		return &provider.Error{Class: provider.Classify(unreachable), Err: fmt.Errorf("host %s: %w", h.options.Name, err)}
	case errors.Is(err, libvirt.ErrUnsupported):
		return &provider.Error{Class: provider.ErrPermanent, Err: text}
	default:
		return &provider.Error{Class: provider.ErrTransient, Err: text}
	}
}

// noKVM are words by which QEMU and libvirt say that KVM itself does not work,
// as against the machine that was to run under it. There is no code for it.
var noKVM = []string{
	"failed to set msr", // a nested KVM that lacks what it announces
	"kvm_buf_set_msrs",
	"could not access kvm kernel module",
	"failed to initialize kvm",
	"kvm_create_vm",
	"kvm_create_vcpu",
	"kvm_init_vcpu failed",
	"kvm_init_vcpu: ",
	"kvm: entry failed",
	"does not support virt type 'kvm'",
	"invalid accelerator kvm",
}

// KVMFailure is the line in which a failed start says that KVM does not work on
// the host, or empty when it failed for another reason.
func KVMFailure(err error) string {
	var answered libvirt.Error
	if !errors.As(err, &answered) || class(answered) == provider.ErrQuotaExceeded {
		return ""
	}
	for line := range strings.Lines(answered.Message) {
		for _, words := range noKVM {
			if strings.Contains(strings.ToLower(line), words) {
				// Without what libvirt and QEMU put before it: it holds the time.
				if _, said, ok := strings.Cut(line, "qemu-system-x86_64: "); ok {
					line = strings.TrimPrefix(said, "error: ")
				}
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}

// noRoom are words by which libvirt, QEMU and the kernel say that space or
// memory ran out; they have no code of their own.
var noRoom = []string{
	"no space left on device",
	"disk quota exceeded",
	"cannot allocate memory",
	"cannot set up guest memory",
	"out of memory",
	"not enough free memory",
	"file too large",
}

// class of an answer. Whatever is not known to be for good is transient.
func class(answered libvirt.Error) error {
	message := strings.ToLower(answered.Message)
	for _, words := range noRoom {
		if strings.Contains(message, words) {
			return provider.ErrQuotaExceeded
		}
	}
	switch libvirt.ErrorNumber(answered.Code) {
	case libvirt.ErrNoDomain, libvirt.ErrNoStorageVol:
		return provider.ErrNotFound
	case libvirt.ErrNoMemory:
		return provider.ErrQuotaExceeded
	case libvirt.ErrNoStoragePool, libvirt.ErrNoNetwork, libvirt.ErrNoInterface,
		libvirt.ErrXMLError, libvirt.ErrXMLDetail, libvirt.ErrXMLInvalidSchema,
		libvirt.ErrConfigUnsupported, libvirt.ErrInvalidArg, libvirt.ErrArgumentUnsupported,
		libvirt.ErrNoSupport, libvirt.ErrOperationUnsupported, libvirt.ErrCPUIncompatible,
		libvirt.ErrAuthFailed, libvirt.ErrAccessDenied, libvirt.ErrOperationDenied:
		return provider.ErrPermanent
	default:
		return provider.ErrTransient
	}
}
