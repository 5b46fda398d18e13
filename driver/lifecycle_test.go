package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"

	"github.com/egress-proxies/egress/provider"
)

// allocDir makes the directories of an allocation until the test ends. Nomad's
// own clean-up leaves the one above them.
func allocDir(t *testing.T, nomad *testutils.DriverHarness, cfg *drivers.TaskConfig, logs bool) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	t.Cleanup(nomad.MkAllocDir(cfg, logs))
}

func TestTaskLivesAndDies(t *testing.T) {
	h := newHarness(t)
	nomad := testutils.NewDriverHarness(t, h.Driver)
	cfg := h.task("11111111", nil)
	allocDir(t, nomad, cfg, true)

	_, network, err := nomad.StartTask(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if network.IP != "127.0.0.1" || network.PortMap["proxy"] != 25000 || !network.AutoAdvertise {
		t.Errorf("network %+v, want 127.0.0.1 with port proxy 25000, advertised", network)
	}
	name := provider.Name("default", cfg.AllocID, "proxy")
	entry, ok := h.parts.consul.get(name)
	if !ok || !entry.verdict.OK {
		t.Fatalf("registered: %v with %+v, want a passing endpoint when StartTask returns", ok, entry.verdict)
	}
	if got := entry.endpoint; got.Address != "127.0.0.1" || got.Port != 25000 || got.Job != "fleet" || got.MaxLeases != 1 {
		t.Errorf("endpoint %+v", got)
	}
	status, err := nomad.InspectTask(cfg.ID)
	if err != nil || status.State != drivers.TaskStateRunning {
		t.Fatalf("status %+v, %v", status, err)
	}

	world := h.parts.provider.World()
	world.Print(name, "the proxy listens\n")
	logs := filepath.Join(cfg.TaskDir().LogDir, "proxy.stdout.0")
	eventually(t, "the proxy's output is in the task's log", func() bool {
		content, _ := os.ReadFile(logs)
		return string(content) == "the proxy listens\n"
	})

	waited, err := nomad.WaitTask(t.Context(), cfg.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := nomad.StopTask(cfg.ID, 10*time.Second, "SIGINT"); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if result := <-waited; !result.Successful() {
		t.Errorf("result of a stopped task: %+v, want success", result)
	}
	if names := h.parts.consul.names(); len(names) != 0 {
		t.Errorf("still registered after the stop: %q", names)
	}
	if err := nomad.DestroyTask(cfg.ID, false); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	if left := h.parts.names(); len(left) != 0 {
		t.Errorf("left after destroy: %q", left)
	}
	if _, err := nomad.InspectTask(cfg.ID); err == nil {
		t.Error("a destroyed task can still be inspected")
	}
}
