package kvm

import (
	"context"

	"github.com/egress-proxies/egress/provider/kvm/virt"
)

func (f *fake) Versions(ctx context.Context) (v virt.Versions, err error) {
	end, err := f.begin(ctx, "Versions")
	if err != nil {
		return v, err
	}
	defer end(&err)
	return virt.Versions{Libvirt: "9.0.0", Hypervisor: "7.2.0", Hostname: "host"}, nil
}

func (f *fake) Memory(ctx context.Context) (m virt.Memory, err error) {
	end, err := f.begin(ctx, "Memory")
	if err != nil {
		return m, err
	}
	defer end(&err)
	return f.memory, nil
}

func (f *fake) Abilities(ctx context.Context) (a virt.Abilities, err error) {
	end, err := f.begin(ctx, "Abilities")
	if err != nil {
		return a, err
	}
	defer end(&err)
	return f.able, nil
}

func (f *fake) NetworkActive(ctx context.Context, _ string) (active bool, err error) {
	end, err := f.begin(ctx, "NetworkActive")
	if err != nil {
		return false, err
	}
	defer end(&err)
	return f.network, nil
}

func (f *fake) BridgeExists(ctx context.Context, _ string) (exists, known bool, err error) {
	end, err := f.begin(ctx, "BridgeExists")
	if err != nil {
		return false, false, err
	}
	defer end(&err)
	return f.network, true, nil
}
