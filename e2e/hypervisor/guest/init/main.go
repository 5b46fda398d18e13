// Command init is process 1 of the micro guest: a Linux that boots in seconds
// under emulation. It brings up the card, does what the seed disk says as far
// as tests use it (write_files, bootcmd, runcmd and scripts), and runs Debian's
// own guest agent and proxy.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The programs that the image has.
const (
	busybox = "/bin/busybox"
	agent   = "/usr/sbin/qemu-ga"
	proxy   = "/usr/bin/tinyproxy"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: want to be process 1 of a guest")
		os.Exit(1)
	}
	mountAll()
	say("micro guest starts")
	for _, env := range []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"} {
		key, value, _ := strings.Cut(env, "=")
		_ = os.Setenv(key, value)
	}
	go reap()
	go onSignals()
	_ = run(busybox, "ip", "link", "set", "lo", "up")
	// What the network and the agent need comes first: both take a while.
	loadModules("/modules/first")
	up := make(chan struct{})
	go func() { defer close(up); network() }()
	go guestAgent()
	loadModules("/modules/then")
	go powerButton()
	configure(up)
	keep(proxy, "-d", "-c", "/etc/tinyproxy/tinyproxy.conf")
	say("proxy started")
	select {}
}

// say writes a line to the console, with the seconds since power-on.
func say(format string, args ...any) {
	uptime, _, _ := strings.Cut(read("/proc/uptime"), " ")
	fmt.Printf("init[%s]: %s\n", uptime, fmt.Sprintf(format, args...))
}

// read is a file's text; none is empty.
func read(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// try waits up to d for f to find something.
func try(d time.Duration, f func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func mountAll() {
	for _, m := range []struct{ kind, dir, data string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", ""}, {"tmpfs", "/dev/shm", "mode=1777"},
		{"tmpfs", "/run", "mode=755"}, {"tmpfs", "/tmp", "mode=1777"},
	} {
		_ = os.MkdirAll(m.dir, 0o755)
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, m.data); err != nil && err != unix.EBUSY {
			say("mount %s: %v", m.dir, err)
		}
	}
}

// loadModules loads the modules that a list names, in its order.
func loadModules(list string) {
	for name := range strings.FieldsSeq(read(list)) {
		f, err := os.Open(filepath.Join("/modules", name))
		if err == nil {
			err = unix.FinitModule(int(f.Fd()), "", 0)
			_ = f.Close()
		}
		if err != nil && err != unix.EEXIST {
			say("module %s: %v", name, err)
		}
	}
}

// network asks for an address on the first card.
func network() {
	card := ""
	found := try(10*time.Second, func() bool {
		cards, _ := filepath.Glob("/sys/class/net/*/device")
		if len(cards) > 0 {
			card = filepath.Base(filepath.Dir(cards[0]))
		}
		return card != ""
	})
	if !found {
		say("no network card")
		return
	}
	_ = run(busybox, "ip", "link", "set", card, "up")
	// A DHCP server may look for 3 s whether an address is free before it offers
	// it, and then not answer to what was asked for too early.
	for run(busybox, "udhcpc", "-i", card, "-q", "-n", "-t", "5", "-T", "4", "-S", "-s", "/etc/udhcpc.sh") != nil {
		time.Sleep(time.Second)
	}
	say("network is up on %s", card)
}

// guestAgent keeps the agent running on its virtio port.
func guestAgent() {
	port := ""
	found := try(10*time.Second, func() bool {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, name := range names {
			if read(name) == "org.qemu.guest_agent.0" {
				port = filepath.Base(filepath.Dir(name))
			}
		}
		return port != ""
	})
	if !found {
		say("no guest agent channel")
		return
	}
	keep(agent, "-m", "virtio-serial", "-p", "/dev/"+port)
	say("guest agent started")
}

// powerButton shuts down when the host presses it: libvirt's ACPI shutdown.
func powerButton() {
	const (
		eventSize = 24 // struct input_event on 64 bit
		evKey     = 1
		keyPower  = 116
	)
	devices, _ := filepath.Glob("/dev/input/event*")
	for _, device := range devices {
		go func() {
			f, err := os.Open(device)
			if err != nil {
				return
			}
			for b := make([]byte, eventSize); ; {
				if n, err := f.Read(b); err != nil || n != eventSize {
					return
				}
				if b[16] == evKey && b[17] == 0 && b[18] == keyPower && b[19] == 0 && b[20] == 1 {
					if read("/run/ignore-power-button") == "" {
						halt("power button", unix.LINUX_REBOOT_CMD_POWER_OFF)
					}
					say("power button ignored")
				}
			}
		}()
	}
}

// onSignals serves busybox's poweroff (USR2) and reboot (TERM).
func onSignals() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	if <-signals == unix.SIGTERM {
		halt("reboot", unix.LINUX_REBOOT_CMD_RESTART)
	}
	halt("poweroff", unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func halt(why string, how int) {
	say("shutting down: %s", why)
	_ = unix.Kill(-1, unix.SIGTERM)
	time.Sleep(200 * time.Millisecond)
	unix.Sync()
	_ = unix.Reboot(how)
}
