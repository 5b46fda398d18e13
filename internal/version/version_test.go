package version_test

import (
	"testing"

	semver "github.com/hashicorp/go-version"

	"github.com/egress-proxies/egress/internal/version"
)

func TestNomadAcceptsTheVersion(t *testing.T) {
	if _, err := semver.NewVersion(version.Version); err != nil {
		t.Errorf("Nomad would refuse the plugin: %v", err)
	}
}
