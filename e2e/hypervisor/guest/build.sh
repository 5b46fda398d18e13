#!/bin/bash
# Builds the micro guest: a disk of about 35 MB that boots under BIOS and under
# UEFI into a Debian kernel, our init, and Debian's own tinyproxy and qemu-ga.
# Nothing is mounted, and the machine's own package sources stay as they are.
#
#   build.sh INIT WORK OUT    INIT is the built init, WORK an empty directory
set -euo pipefail
init=$(realpath "$1") work=$(realpath "$2") out=$(realpath -m "$3")
cd "$work"
export MTOOLS_SKIP_CHECK=1 PATH=$PATH:/usr/sbin:/sbin

# Debian 12's own cloud kernel has no AHCI and its modules cost seconds under
# emulation: the one from backports is read through lists of our own.
backports() {
	local mirror
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Identifier: Packages' | head -n 1)
	[ -n "$mirror" ] || { echo "no bookworm mirror in the machine's package sources" >&2; exit 1; }
	mkdir -p apt/lists/partial apt/cache/archives/partial
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" >apt/sources.list
	options=(-o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update -qq
	kernel=$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
	apt-get "${options[@]}" download -qq "$kernel"
}

# fetch and unpack everything that goes into the guest
packages() {
	backports
	apt-get -o APT::Sandbox::User=root download -qq qemu-guest-agent tinyproxy-bin
	mkdir debian
	for deb in *.deb; do dpkg -x "$deb" debian; done
	version=${kernel#linux-image-}
	depmod -b debian "$version"
}

# modules LIST NAME...: copies modules and what they need, in loading order
modules() {
	local list=$1 name file base
	shift
	for name; do
		modprobe -d "$work/debian" -S "$version" --show-depends "$name" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
	done | while read -r file; do
		base=$(basename "${file%.xz}")
		[ ! -e "root/modules/$base" ] || continue
		case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac >"root/modules/$base"
		strip -g "root/modules/$base"
		echo "$base" >>"root/modules/$list"
	done
}

# program PATH: copies a program of the packages with the libraries it needs
program() {
	local library
	install -D -m 755 "debian$1" "root$1"
	# The libraries are the machine's: it is the same Debian.
	if ldd "debian$1" | grep 'not found'; then echo "$1 lacks libraries" >&2; exit 1; fi
	ldd "debian$1" | grep -o '/[^ ]*' | while read -r library; do
		[ -e "root$library" ] || install -D -m 755 "$library" "root$library"
	done
}

# the file system in memory that is all the guest has
root() {
	mkdir -p root/{bin,sbin,etc/tinyproxy,proc,sys,dev,run,tmp,var/log,var/lib,root,modules,usr/bin,usr/sbin}
	chmod 755 root
	ln -s ../run root/var/run
	install -m 755 "$init" root/init
	install -m 755 /bin/busybox root/bin/busybox
	for applet in $(/bin/busybox --list); do
		[ -e "root/bin/$applet" ] || ln -s busybox "root/bin/$applet"
	done
	ln -s /bin/env root/usr/bin/env
	modules first virtio_pci virtio_net virtio_console
	modules then virtio_blk ahci sr_mod sd_mod virtio_scsi isofs virtio-rng button evdev
	program /usr/sbin/qemu-ga
	program /usr/bin/tinyproxy

	# qemu-ga's guest-shutdown runs this
	printf '#!/bin/sh\ncase "$*" in *-r*) exec busybox reboot ;; *) exec busybox poweroff ;; esac\n' >root/sbin/shutdown
	cat >root/etc/udhcpc.sh <<'EOF'
#!/bin/sh
case $1 in bound | renew)
	ip addr flush dev "$interface"
	ip addr add "$ip/${mask:-24}" dev "$interface"
	[ -z "$router" ] || ip route replace default via "${router%% *}"
	for server in $dns; do echo "nameserver $server"; done >/etc/resolv.conf
	;;
esac
EOF
	chmod 755 root/sbin/shutdown root/etc/udhcpc.sh
	printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n' >root/etc/passwd
	printf 'root:x:0:\nnogroup:x:65534:\n' >root/etc/group
	printf 'passwd: files\ngroup: files\nhosts: files dns\n' >root/etc/nsswitch.conf
	printf '127.0.0.1 localhost\n' >root/etc/hosts
	printf 'Port 3128\nTimeout 600\nMaxClients 100\nLogLevel Info\nAllow 0.0.0.0/0\n' >root/etc/tinyproxy/tinyproxy.conf
	(cd root && find . -print0 | sort -z | cpio --null -o -H newc --quiet -R 0:0) | zstd -q -3 >initrd
}

# one FAT partition: syslinux for BIOS, a unified kernel image for UEFI
disk() {
	local vmlinuz=debian/boot/vmlinuz-$version size
	# cmpxchg16b of 6.12 kernels goes wrong now and then under QEMU 7.2's emulation
	local cmdline="console=ttyS0,115200 panic=-1 clearcpuid=cx16"
	size=$((($(stat -c %s "$vmlinuz") + $(stat -c %s initrd)) * 2 / 1048576 + 12))
	truncate -s "${size}M" fat
	mkfs.vfat -F 16 -n MICRO fat >/dev/null
	printf 'DEFAULT l\nPROMPT 0\nTIMEOUT 0\nLABEL l\n LINUX /vmlinuz\n INITRD /initrd\n APPEND %s\n' "$cmdline" >syslinux.cfg
	mcopy -i fat "$vmlinuz" ::/vmlinuz
	mcopy -i fat initrd syslinux.cfg ::/
	syslinux --install fat
	printf %s "$cmdline" >cmdline
	printf 'ID=micro\nPRETTY_NAME=micro\n' >os-release
	objcopy \
		--add-section .osrel=os-release --change-section-vma .osrel=0x20000 \
		--add-section .cmdline=cmdline --change-section-vma .cmdline=0x30000 \
		--add-section .linux="$vmlinuz" --change-section-vma .linux=0x2000000 \
		--add-section .initrd=initrd --change-section-vma .initrd=0x4000000 \
		/usr/lib/systemd/boot/efi/linuxx64.efi.stub BOOTX64.EFI
	mmd -i fat ::/EFI ::/EFI/BOOT
	mcopy -i fat BOOTX64.EFI ::/EFI/BOOT/
	truncate -s "$((size + 1))M" disk
	printf 'label: dos\nstart=2048, type=ef, bootable\n' | sfdisk -q disk
	dd if=fat of=disk bs=1M seek=1 conv=notrunc,sparse status=none
	dd if=/usr/lib/syslinux/mbr/mbr.bin of=disk bs=440 count=1 conv=notrunc status=none
	qemu-img convert -f raw -O qcow2 disk "$out"
}

packages
root
disk
