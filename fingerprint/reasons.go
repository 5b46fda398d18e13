package fingerprint

import "github.com/egress-proxies/egress/provider"

// advice says for each reason what a person does about it. A verdict's own
// message knows more; this is for those that have none.
var advice = map[provider.Reason]string{
	provider.Reachable:                 "nothing: it is ready",
	provider.Timeout:                   "see whether the target is overloaded or hangs, and whether a firewall drops packets",
	provider.Unreachable:               "see whether the target is up, and its address and port in the plugin's config",
	provider.Unauthorized:              "renew the credentials in the plugin's config: the target does not accept them",
	provider.Forbidden:                 "give the account the right that the message names",
	provider.APIError:                  "look at the target's own log: it answered with an error",
	provider.SSHMaterialUnavailable:    "put the SSH key and the known_hosts file where the plugin's config says, readable for it",
	provider.SSHHandshakeFailed:        "compare the host key with known_hosts, and the user's authorized_keys with the key",
	provider.LibvirtConnectFailed:      "start libvirtd, and let the user open its socket",
	provider.LibvirtError:              "look at libvirtd's log on the host",
	provider.PoolNotFound:              "define the storage pool, or correct its name in the plugin's config",
	provider.PoolNotActive:             "start the storage pool: virsh pool-start",
	provider.PoolNearlyFull:            "free space: list what is there with egress gc and egress images",
	provider.NetworkNotFound:           "define and start the network or the bridge, or correct its name in the plugin's config",
	provider.FirmwareMissing:           "install the UEFI firmware (Debian: ovmf), or use images with firmware = \"bios\"",
	provider.VirtualizationUnavailable: "switch virtualization on in the firmware and load kvm, or set virt_type = \"qemu\"",
	provider.QuotaExhausted:            "raise the quota that the message names, or add places elsewhere",
}

// Advice is what a person does about a reason.
func Advice(reason provider.Reason) string { return advice[reason] }
