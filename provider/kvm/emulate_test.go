package kvm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
)

// errMSR is what a nested KVM said that announces more than it has.
var errMSR = answer(provider.ErrTransient, libvirt.ErrInternalError,
	"internal error: qemu unexpectedly closed the monitor: 2026-11-30T07:24:44.281662Z qemu-system-x86_64: error: failed to set MSR 0x10a to 0x69\n"+
		"qemu-system-x86_64: ../../target/i386/kvm/kvm.c:3183: kvm_buf_set_msrs: Assertion `ret == cpu->kvm_msr_buf->nmsrs' failed.")

const saidMSR = "failed to set MSR 0x10a to 0x69"

// definition is the XML of a machine.
func (f *fake) definition(t *testing.T, name string) string {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.domains[name]
	if !ok {
		t.Fatalf("no machine %s", name)
	}
	return d.xml
}

func TestAMachineIsEmulatedWhereKVMDoesNotWork(t *testing.T) {
	w := newWorld(t, "a")
	f, p := w.hosts["a"], w.provider(t, "contract")
	p.hosts[0].CPUMode = "host-passthrough"
	f.fail["StartDomain"] = errMSR
	var told strings.Builder
	first := named(t, "first")
	_, err := p.Create(provider.WithProgress(t.Context(), func(m string) { told.WriteString(m + "\n") }), first)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<domain type="qemu">`, `<cpu mode="maximum">`} {
		if document := f.definition(t, first.Name); !strings.Contains(document, want) {
			t.Errorf("no %s in\n%s", want, document)
		}
	}
	if !strings.Contains(told.String(), "KVM does not work on a ("+saidMSR+"): the machine is emulated") {
		t.Errorf("progress:\n%s", told.String())
	}

	// The next start, also of a plugin that was started anew, loses no time, and
	// egress check tells.
	p = w.provider(t, "contract")
	starts := f.calls["StartDomain"]
	create(t, p, named(t, "second"))
	if n := f.calls["StartDomain"] - starts; n != 1 || !strings.Contains(f.definition(t, named(t, "second").Name), `type="qemu"`) {
		t.Errorf("the second machine took %d starts, want one, emulated", n)
	}
	v := p.Check(t.Context())[0]
	if !v.Ready || v.Facts["virt_type"] != "qemu" || !strings.Contains(v.Message, saidMSR) {
		t.Errorf("verdict %+v, want ready, emulated", v)
	}

	// After a while KVM is tried again.
	aged := time.Now().Add(-2 * brokenFor)
	if err := os.Chtimes(filepath.Join(w.state, "kvm-broken", "a"), aged, aged); err != nil {
		t.Fatal(err)
	}
	if v := p.Check(t.Context())[0]; v.Facts["virt_type"] != "qemu" {
		t.Errorf("verdict %+v: the fact changed without a start", v)
	}
	create(t, p, named(t, "third"))
	if document := f.definition(t, named(t, "third").Name); !strings.Contains(document, `type="kvm"`) {
		t.Errorf("a host that was repaired is not used:\n%s", document)
	}
	if v := p.Check(t.Context())[0]; v.Facts["virt_type"] != "kvm" || v.Message != "ready" {
		t.Errorf("verdict %+v, want kvm", v)
	}
}

func TestKVMThatIsDemandedIsNotReplaced(t *testing.T) {
	w := newWorld(t, "a")
	f, p := w.hosts["a"], w.provider(t, "contract")
	p.hosts[0].VirtType = "kvm"
	s := named(t, "x")
	f.fail["StartDomain"] = errMSR
	_, err := p.Create(t.Context(), s)
	if provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), `set virt_type = "auto"`) {
		t.Errorf("%v, want ErrPermanent with what to do", err)
	}
	if n := f.count(t, s.Name); n != 0 {
		t.Errorf("%d pieces are left", n)
	}
	if v := p.Check(t.Context())[0]; v.Reason != provider.VirtualizationUnavailable || !strings.Contains(v.Message, saidMSR) {
		t.Errorf("verdict %+v, want VirtualizationUnavailable with what QEMU said", v)
	}
	create(t, p, s) // it is tried all the same
	if v := p.Check(t.Context())[0]; !v.Ready {
		t.Errorf("verdict %+v after a start under KVM, want ready", v)
	}
}

func TestAnotherFailureIsNotBlamedOnKVM(t *testing.T) {
	for name, err := range map[string]error{
		"no memory": answer(provider.ErrQuotaExceeded, libvirt.ErrInternalError,
			"qemu-system-x86_64: ioctl(KVM_CREATE_VM) failed: 12 Cannot allocate memory"),
		"a disk": answer(provider.ErrTransient, libvirt.ErrInternalError,
			"process exited while connecting to monitor: qemu-system-x86_64: -blockdev: Could not open '/pool/x.qcow2'"),
		"the connection": provider.Transientf("failed to set MSR, says nobody"),
	} {
		w := newWorld(t, "a")
		f, p := w.hosts["a"], w.provider(t, "contract")
		f.fail["StartDomain"] = err
		if _, got := p.Create(t.Context(), named(t, "x")); got == nil || f.calls["StartDomain"] != 1 {
			t.Errorf("%s: %v after %d starts, want the error of the first", name, got, f.calls["StartDomain"])
		}
		if v := p.Check(t.Context())[0]; v.Facts["virt_type"] != "kvm" {
			t.Errorf("%s: verdict %+v, want kvm", name, v)
		}
	}
}
