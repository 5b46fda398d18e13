package e2e_test

import (
	"context"
	"os/exec"
	"strings"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// nodeStatus logs what `nomad node status -verbose` says of the driver: its
// health and its attributes.
func (f *fixture) nodeStatus() {
	f.t.Helper()
	nomad, err := cluster.Server("nomad", "EGRESS_NOMAD_BIN")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, nomad, "node", "status", "-address="+f.Nomad.Address, "-verbose", "-self").CombinedOutput()
	if err != nil {
		f.t.Errorf("nomad node status: %v\n%s", err, out)
	}
	var ours strings.Builder
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "egress ") || strings.HasPrefix(line, "driver.egress") {
			ours.WriteString(line)
		}
	}
	f.t.Logf("nomad node status -verbose -self\n%s", ours.String())
}
