#!/bin/bash
# Builds the full guest: Debian 12 with systemd, cloud-init and an SSH server, on
# a disk that boots under BIOS and under UEFI. It has Debian's squid and
# qemu-guest-agent in a package source of its own, not installed: its tests have
# no network, and are about how a guest gets them. Nothing is mounted but by
# mmdebstrap in its own namespace, and the machine's package sources stay as
# they are.
#
#   build.sh WORK OUT    WORK is an empty directory
set -euo pipefail
here=$(dirname "$(realpath "$0")") work=$(realpath "$1") out=$(realpath -m "$2")
cd "$work"
export MTOOLS_SKIP_CHECK=1 PATH=$PATH:/usr/sbin:/sbin

step() { echo "$SECONDS s: $*"; }

# installed are the packages that the guest begins with. The second line is what
# squid and the agent need, so that a guest under emulation does not unpack perl.
installed=systemd-sysv,dbus,udev,iproute2,kmod,cloud-init,openssh-server,sudo,ca-certificates,linux-image-cloud-amd64
installed+=,squid-langpack,netbase,logrotate,libdbi-perl,libecap3,libltdl7,libnetfilter-conntrack3,libtdb1,libldap-2.5-0,libglib2.0-0,libnuma1,liburing2
offered=(squid qemu-guest-agent)

system() {
	local mirror exclude=() path
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Identifier: Packages' | head -n 1)
	[ -n "$mirror" ] || { echo "no bookworm mirror in the machine's package sources" >&2; exit 1; }
	for path in usr/share/{man,locale,doc} lib/modules/'*'/kernel/{sound,drivers/gpu,drivers/media,drivers/infiniband}; do
		exclude+=(--dpkgopt="path-exclude=/$path/*")
	done
	step "unpack Debian"
	# Downloads of hooks go where mmdebstrap's apt puts them: into the guest.
	mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$installed" \
		--aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io "${exclude[@]}" \
		--customize-hook="APT_CONFIG=\$MMDEBSTRAP_APT_CONFIG apt-get clean" \
		--customize-hook="APT_CONFIG=\$MMDEBSTRAP_APT_CONFIG apt-get -qq -y --download-only install ${offered[*]}" \
		--customize-hook='mkdir "$1/opt/debs" && mv "$1"/var/cache/apt/archives/*.deb "$1/opt/debs/"' \
		--customize-hook='chroot "$1" systemctl --quiet enable systemd-networkd' \
		bookworm root "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main"
	version=$(ls root/lib/modules)
}

# offer makes /opt/debs a package source, the guest's only one.
offer() {
	local deb
	for deb in root/opt/debs/*.deb; do
		dpkg-deb -f "$deb"
		echo "Filename: ./${deb##*/}"
		echo "Size: $(stat -c %s "$deb")"
		echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
		echo
	done >root/opt/debs/Packages
	rm -f root/etc/apt/sources.list.d/*
	echo 'deb [trusted=yes] file:/opt/debs ./' >root/etc/apt/sources.list
}

# settings leave out what only costs time under emulation; whatever a test is
# about is as Debian has it.
settings() {
	local unit
	install -m 644 "$here/cloud.cfg" root/etc/cloud/cloud.cfg.d/90_test.cfg
	for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
		logrotate.timer getty@tty1.service systemd-hwdb-update.service systemd-journal-catalog-update.service ldconfig.service \
		systemd-update-done.service systemd-pstore.service systemd-update-utmp.service cloud-init-hotplugd.socket; do
		ln -sfn /dev/null "root/etc/systemd/system/$unit"
	done
	rm -f root/etc/ssh/ssh_host_* root/etc/resolv.conf
	touch root/etc/resolv.conf
	echo force-unsafe-io >root/etc/dpkg/dpkg.cfg.d/unsafe-io
	echo uninitialized >root/etc/machine-id
	echo debian >root/etc/hostname
	echo '/dev/vda2 / ext4 defaults,noatime 0 1' >root/etc/fstab
	touch -r root/usr root/etc/.updated root/var/.updated
}

# initrd mounts the root file system and goes there.
initrd() {
	local file base
	mkdir -p initrd.d/{bin,modules,proc,sys,dev,root}
	cp /bin/busybox initrd.d/bin/
	for name in virtio_pci virtio_blk ext4; do
		modprobe -d "$work/root" -S "$version" --show-depends "$name" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
	done | while read -r file; do
		base=${file##*/}
		[ ! -e "initrd.d/modules/$base" ] || continue
		cp "$file" initrd.d/modules/
		echo "$base" >>initrd.d/modules/order
	done
	install -m 755 "$here/initrd.sh" initrd.d/init
	(cd initrd.d && find . -print0 | sort -z | cpio --null -o -H newc --quiet -R 0:0) | zstd -q -3 >initrd
}

# boot is the FAT partition: syslinux for BIOS, a unified kernel image for UEFI.
boot() {
	# Modern kernels' cmpxchg16b goes wrong now and then under QEMU 7.2's emulation.
	local vmlinuz=root/boot/vmlinuz-$version cmdline="rw console=ttyS0,115200 net.ifnames=0 mitigations=off quiet clearcpuid=cx16"
	truncate -s "${boot_mib}M" fat
	mkfs.vfat -F 16 -n ESP fat >/dev/null
	printf 'DEFAULT l\nPROMPT 0\nTIMEOUT 0\nLABEL l\n LINUX /vmlinuz\n INITRD /initrd\n APPEND %s\n' "$cmdline" >syslinux.cfg
	mcopy -i fat "$vmlinuz" ::/vmlinuz
	mcopy -i fat initrd syslinux.cfg ::/
	syslinux --install fat
	printf %s "$cmdline" >cmdline
	objcopy \
		--add-section .osrel=root/usr/lib/os-release --change-section-vma .osrel=0x20000 \
		--add-section .cmdline=cmdline --change-section-vma .cmdline=0x30000 \
		--add-section .linux="$vmlinuz" --change-section-vma .linux=0x2000000 \
		--add-section .initrd=initrd --change-section-vma .initrd=0x4000000 \
		/usr/lib/systemd/boot/efi/linuxx64.efi.stub BOOTX64.EFI
	mmd -i fat ::/EFI ::/EFI/BOOT
	mcopy -i fat BOOTX64.EFI ::/EFI/BOOT/
}

disk() {
	local root_mib
	boot_mib=64
	boot
	root_mib=$(($(du -sm root | cut -f 1) * 115 / 100 + 400))
	truncate -s "${root_mib}M" ext4
	mke2fs -q -t ext4 -L root -d root ext4
	truncate -s "$((boot_mib + root_mib + 2))M" disk
	printf 'label: dos\nstart=2048, size=%dMiB, type=ef, bootable\nstart=%d, size=%dMiB, type=83\n' \
		"$boot_mib" "$((2048 + boot_mib * 2048))" "$root_mib" | sfdisk -q disk
	dd if=fat of=disk bs=1M seek=1 conv=notrunc,sparse status=none
	dd if=ext4 of=disk bs=1M seek="$((1 + boot_mib))" conv=notrunc,sparse status=none
	dd if=/usr/lib/syslinux/mbr/mbr.bin of=disk bs=440 count=1 conv=notrunc status=none
	step "convert to qcow2"
	qemu-img convert -f raw -O qcow2 disk "$out"
}

system
step "make the package source and the settings"
offer
settings
initrd
step "make the disk"
disk
step "done: $(stat -c %s "$out") bytes"
