package domain

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/egress-proxies/egress/provider"
)

var update = flag.Bool("update", false, "write the golden files")

func machine() Machine {
	return Machine{
		Name: "eg-a1b2c3d4-proxy-abcdefghij", VirtType: "kvm", CPUMode: "host-passthrough", Cores: 2, MemoryMiB: 512,
		Disk: "/pool/d.qcow2", Seed: "/pool/s.iso", Console: "/pool/c.log", Network: "default",
		Metadata: Metadata{Port: 3128, Stale: []string{"10.0.0.5@1700000000"}, Labels: provider.Labels{
			Cluster: "prod", Namespace: "default", Job: `a<b>&"c"`, Group: "g", Alloc: "a1b2c3d4", Task: "proxy", Node: "n",
			CreatedAt: time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC),
		}},
	}
}

func TestGolden(t *testing.T) {
	bios := machine()
	bios.BIOS, bios.VirtType, bios.CPUMode, bios.Network = true, "qemu", "maximum", "bridge:br0"
	overlay := Volume{Name: "x.qcow2", Format: "qcow2", Capacity: 1 << 30, Backing: "/pool/base", BackingFormat: "raw"}
	for name, build := range map[string]func() (string, error){
		"uefi-kvm-network.xml": machine().XML,
		"bios-qemu-bridge.xml": bios.XML,
		"overlay.xml":          overlay.XML,
		"raw.xml":              Volume{Name: "seed.iso", Capacity: 100}.XML,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := build()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Cases 32, 34 and 43.
func TestWhatHostsAndGuestsNeed(t *testing.T) {
	got, err := machine().XML()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"type=\"volume\"", "bus=\"sata\"", "cdrom", "<graphics", "<video"} {
		if strings.Contains(got, bad) {
			t.Errorf("the definition has %s", bad)
		}
	}
	for _, want := range []string{`firmware="efi"`, `enabled="no" name="secure-boot"`, `file="/pool/s.iso"`, "org.qemu.guest_agent.0"} {
		if !strings.Contains(got, want) {
			t.Errorf("the definition lacks %s", want)
		}
	}
}

// libvirt returns the element without its declaration (case 33).
func TestMetadataWithoutItsDeclaration(t *testing.T) {
	want := machine().Metadata
	written, err := want.XML()
	if err != nil {
		t.Fatal(err)
	}
	for name, document := range map[string]string{
		"as written": written,
		"bare":       strings.Replace(written, ` xmlns:egress="`+Namespace+`"`, "", 1),
		"no prefix":  strings.ReplaceAll(written, "egress:", ""),
	} {
		got, managed, err := ReadMetadata(document)
		if err != nil || !managed {
			t.Errorf("%s: managed is %v, error %v", name, managed, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, managed, err := ReadMetadata(""); managed || err != nil {
		t.Errorf("no metadata: managed is %v, error %v", managed, err)
	}
}

func TestControlCharactersAreRefused(t *testing.T) {
	m := machine()
	m.Metadata.Labels.Job = "a\x00b"
	if _, err := m.XML(); provider.Classify(err) != provider.ErrPermanent {
		t.Errorf("a label with a zero byte: %v, want ErrPermanent", err)
	}
}

func TestVolumeNames(t *testing.T) {
	for _, cluster := range []string{"prod", "a_b", "a.b-c"} {
		for _, kind := range Kinds {
			name := VolumeName(cluster, "eg-x-y", kind)
			gotCluster, gotName, gotKind, ok := ParseVolumeName(name)
			if !ok || gotCluster != cluster || gotName != "eg-x-y" || gotKind != kind {
				t.Errorf("%s reads as %q %q %q %v", name, gotCluster, gotName, gotKind, ok)
			}
		}
	}
	for _, other := range []string{"", "egress_", "egress_prod_eg-x.img", "egress-base.qcow2", "egress_prod_x.qcow2", "eg-x.qcow2", "egress_eg-x.qcow2"} {
		if _, _, _, ok := ParseVolumeName(other); ok {
			t.Errorf("%q is taken for ours", other)
		}
	}
}

func TestMAC(t *testing.T) {
	a, b := MAC("eg-a"), MAC("eg-b")
	if a == b || a != MAC("eg-a") || !strings.HasPrefix(a, "52:54:00:") || len(a) != 17 {
		t.Errorf("MACs %s and %s", a, b)
	}
}

func FuzzReadMetadata(f *testing.F) {
	written, _ := machine().Metadata.XML()
	f.Add(written)
	f.Add("<label name=")
	f.Add("<a:instance><a:label name='egress-managed'>true</a:label></a:instance>")
	f.Fuzz(func(t *testing.T, document string) {
		if _, managed, err := ReadMetadata(document); err != nil && managed {
			t.Error("managed, and an error")
		}
	})
}

func FuzzParseVolumeName(f *testing.F) {
	f.Add("egress_prod_eg-x.qcow2")
	f.Fuzz(func(t *testing.T, volume string) {
		if cluster, name, kind, ok := ParseVolumeName(volume); ok && VolumeName(cluster, name, kind) != volume {
			t.Errorf("%q reads as %q %q %q", volume, cluster, name, kind)
		}
	})
}
