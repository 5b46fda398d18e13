package command_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/jobs/command"
)

// job runs `egress job` and gives what it printed and its exit code. What needs
// an agent is tested against a real one, in e2e.
func job(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	c := command.Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &coded):
		code = coded.ExitCode()
	case err != nil:
		code = 1
	}
	return out.String(), code
}

func TestUsageErrorsNameTheMistakeAndTheFix(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.nomad.hcl")
	if err := os.WriteFile(own, []byte("variable \"x\" {\n  type = number\n}\njob \"own\" {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"unknown jobspec":  {[]string{"plan", "proces"}, []string{`"proces"`, "process"}},
		"no such file":     {[]string{"plan", "./none.nomad.hcl"}, []string{"none.nomad.hcl", "no such file"}},
		"no value":         {[]string{"run", own}, []string{"no value for x", "--var x="}},
		"no equals sign":   {[]string{"run", "process", "--var", "count"}, []string{`--var "count": want name=value`}},
		"unknown variable": {[]string{"render", "process", "--var", "cuont=1"}, []string{`"cuont"`, `did you mean "count"?`}},
		"wrong type":       {[]string{"run", "process", "--var", "count=x"}, []string{`variable "count": value "x": want number`}},
		"no URL":           {[]string{"plan", "process", "--address", "127.0.0.1:4646"}, []string{`--address "127.0.0.1:4646"`, "http://"}},
		"no host":          {[]string{"plan", "process", "--address", "http://:4646"}, []string{`--address "http://:4646"`, "http://"}},
		"wrong value":      {[]string{"render", own, "--var", "x=[1"}, []string{`"x"`, "want number, such as 10"}},
		"nobody answers":   {[]string{"plan", "process", "--address", "http://127.0.0.1:1"}, []string{"no answer from a Nomad agent at http://127.0.0.1:1", "refused", "NOMAD_ADDR or --address"}},
	} {
		out, code := job(t, tc.args...)
		if code != 1 {
			t.Errorf("%s: exit code %d, want 1", name, code)
		}
		for _, want := range tc.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in %s", name, want, out)
			}
		}
	}
}

func TestListTeachesTheJobspecsAndTheirVariables(t *testing.T) {
	out, code := job(t, "list")
	if code != 0 || !strings.Contains(out, "process") || !strings.Contains(out, "A fleet of proxies that run as processes") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	out, code = job(t, "list", "external")
	if code != 0 || !strings.Contains(out, "endpoints") || !strings.Contains(out, "(must be set)") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestRenderNeedsNoAgent(t *testing.T) {
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
	out, code := job(t, "render", "process", "--var", "count=17", "--var", "name=mine")
	if code != 0 || !strings.Contains(out, "default     = 17") || !strings.Contains(out, `default     = "mine"`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
