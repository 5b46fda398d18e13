#!/bin/busybox sh
# Init of the full guest's initrd: it mounts the root file system and goes there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order
i=0
while [ ! -b /dev/vda2 ] && [ $i -lt 400 ]; do
	$b usleep 50000
	i=$((i + 1))
done
$b mount -t ext4 -o noatime /dev/vda2 /root
$b mount -o move /dev /root/dev
$b umount /proc /sys
exec $b switch_root /root /sbin/init
