package command_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/driver/command"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

// scene is an agent's configuration, a Nomad with one live allocation, and a
// provider with an instance of it and one of an allocation that is over.
func scene(t *testing.T) (p *fake.Provider, run func(arguments ...string) (string, error)) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Nomad-Index", "1")
		w.Header().Set("X-Nomad-LastContact", "0")
		if r.URL.Path == "/v1/nodes" {
			_, _ = fmt.Fprint(w, `[{"ID":"node-1"}]`)
			return
		}
		_, _ = fmt.Fprint(w, `[{"ID":"alive","ClientStatus":"running"}]`)
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "egress.hcl")
	text := fmt.Sprintf(`plugin "egress" { config {
		nomad { address = %q }
		provider "hv" { type = "fake" }
	} }`, server.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p = fake.New(fake.Options{Cluster: "default"})
	for _, alloc := range []string{"alive", "gone"} {
		_, err := p.Create(t.Context(), provider.Spec{
			Name: "eg-" + alloc, Labels: provider.Labels{
				Cluster: "default", Namespace: "default", Job: "fleet", Alloc: alloc, Task: "proxy", Node: "node-1",
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return p, func(arguments ...string) (string, error) {
		gc := command.Command(provider.Factories{
			"fake": func(provider.Config, provider.Env) (provider.Provider, error) { return p, nil },
		})
		var out bytes.Buffer
		gc.SetOut(&out)
		gc.SetErr(&out)
		gc.SetArgs(append([]string{"--config", config}, arguments...))
		err := gc.ExecuteContext(t.Context())
		return out.String(), err
	}
}

// aged lets the instances, which are made in whole seconds, be old enough.
const aged = "--older-than=1ns"

func TestGarbageIsDeleted(t *testing.T) {
	p, run := scene(t)
	time.Sleep(time.Millisecond) // older than a nanosecond even when the second has just begun
	out, err := run(aged)
	if err != nil {
		t.Fatal(err, out)
	}
	if names := p.World().Names(); len(names) != 1 || names[0] != "eg-alive" {
		t.Errorf("left %q, want the live one", names)
	}
	if !strings.Contains(out, "deleted  hv        fake/eg-gone") || strings.Contains(out, "eg-alive") {
		t.Errorf("output:\n%s", out)
	}
	if out, err := run(aged); err != nil || !strings.Contains(out, "Nothing to delete: 1 instances looked at.") {
		t.Errorf("second run: %v\n%s", err, out)
	}
}

func TestDryRunAndJSON(t *testing.T) {
	p, run := scene(t)
	out, err := run(aged, "--dry-run", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Action, Instance, Alloc string }
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(rows) != 2 || rows[0].Action != "keep" || rows[1].Action != "would delete" || rows[1].Alloc != "gone" {
		t.Errorf("rows %+v", rows)
	}
	if len(p.World().Names()) != 2 {
		t.Error("a dry run deleted something")
	}
}

func TestYoungInstancesStayByDefault(t *testing.T) {
	p, run := scene(t)
	if out, err := run(); err != nil || len(p.World().Names()) != 2 {
		t.Errorf("left %q, %v\n%s", p.World().Names(), err, out)
	}
}

func TestAFailedDeleteIsAnExitCode(t *testing.T) {
	p, run := scene(t)
	p.Fail(fake.StepDelete, -1, provider.Transientf("the hypervisor is down"))
	out, err := run(aged)
	coded, ok := err.(interface{ ExitCode() int })
	if !ok || coded.ExitCode() != 1 || !strings.Contains(out, "the hypervisor is down") {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}

func TestAPlaceThatCannotBeListedIsTold(t *testing.T) {
	p, run := scene(t)
	p.Fail(fake.StepList, -1, provider.Transientf("no route to host"))
	out, err := run(aged)
	if err == nil || !strings.Contains(out, `provider "hv" can't be listed: no route to host`) {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}
