#!/bin/sh
# Installs and starts the QEMU guest agent, through which the host asks the
# guest for its addresses, runs commands and shuts it down. Without it the guest
# works all the same, so a failure is told on the console and is no error.

have() { command -v "$1" >/dev/null 2>&1; }

install_agent() {
	if have apt-get; then
		export DEBIAN_FRONTEND=noninteractive
		apt-get -o DPkg::Lock::Timeout=300 update -q &&
			apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends qemu-guest-agent
	elif have dnf; then
		dnf -q -y install qemu-guest-agent
	elif have yum; then
		yum -q -y install qemu-guest-agent
	elif have zypper; then
		zypper -q -n install qemu-guest-agent
	elif have apk; then
		apk add -q qemu-guest-agent
	elif have pacman; then
		pacman -Sy --noconfirm --needed qemu-guest-agent
	else
		return 1
	fi
}

start_agent() {
	if have systemctl; then
		systemctl start qemu-guest-agent.service
	elif have rc-service; then
		rc-update -q add qemu-guest-agent default
		rc-service -q qemu-guest-agent start
	else
		return 1
	fi
}

running() {
	for p in /proc/[0-9]*/comm; do
		read -r name <"$p" 2>/dev/null && [ "$name" = qemu-ga ] && return 0
	done
	return 1
}

if ! running; then
	have qemu-ga || install_agent || echo "egress: could not install qemu-guest-agent"
	start_agent || echo "egress: could not start qemu-guest-agent"
fi
exit 0
