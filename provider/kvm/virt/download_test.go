package virt

import (
	"context"
	"net"
	"testing"
	"time"
)

// libvirtd answers a call and sends a stream's data from different threads, so
// that any of a download's packets may come before the answer to its call.
func TestADownloadMayOvertakeTheAnswerToItsCall(t *testing.T) {
	for after := range 4 { // How many packets come before the answer.
		d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
			if p.procedure != procDownload {
				return true
			}
			for i, data := range []string{"con", "sole", "", "-"} {
				if i == after {
					d.reply(conn, p, nil)
				}
				if data != "-" {
					d.write(conn, p, typeStream, statusContinue, []byte(data))
				}
			}
			return true
		})
		h := d.host(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		content, err := h.ReadVolume(ctx, "default", "console.log", 0, 7)
		cancel()
		if err != nil || string(content) != "console" {
			t.Errorf("%d packets before the answer: read %q, %v", after, content, err)
		}
	}
}
