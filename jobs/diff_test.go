package jobs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

func TestDiffShowsWhatChangesAndNothingElse(t *testing.T) {
	same := &api.FieldDiff{Type: "None", Name: "Priority", Old: "50", New: "50"}
	var text strings.Builder
	err := WriteDiff(&text, &api.JobDiff{
		Type: "Edited", ID: "proxies", Fields: []*api.FieldDiff{same},
		TaskGroups: []*api.TaskGroupDiff{
			{Type: "None", Name: "other"},
			{
				Type: "Edited", Name: "proxy",
				Fields: []*api.FieldDiff{{Type: "Edited", Name: "Count", Old: "3", New: "5", Annotations: []string{"forces create"}}},
				Objects: []*api.ObjectDiff{
					{Type: "Added", Name: "Constraint", Fields: []*api.FieldDiff{
						{Type: "Added", Name: "LTarget", New: "${attr.x}"}, {Type: "Added", Name: "Operand", New: ">="},
						{Type: "Added", Name: "RTarget", New: "50"},
					}},
					{Type: "Edited", Name: "Update", Fields: []*api.FieldDiff{
						{Type: "Edited", Name: "HealthyDeadline", Old: "300000000000", New: "60000000000"},
						{Type: "Added", Name: "Canary", New: "0"},
					}},
				},
				Tasks: []*api.TaskDiff{{
					Type: "Edited", Name: "proxy", Annotations: []string{"forces create/destroy update"},
					Objects: []*api.ObjectDiff{
						{Type: "None", Name: "LogConfig"},
						{Type: "Edited", Name: "Config", Fields: []*api.FieldDiff{
							{Type: "Added", Name: "zone", New: "b"}, {Type: "Deleted", Name: "bind", Old: "::1"}, same,
						}},
					},
				}},
			},
		},
	})
	want := `~ job "proxies"
  ~ group "proxy"
    ~ Count: "3" => "5" (forces create)
    + Constraint: ${attr.x} >= 50
    ~ Update
      ~ HealthyDeadline: 5m0s => 1m0s
    ~ task "proxy" (forces create/destroy update)
      ~ Config
        + zone: "b"
        - bind: "::1"
`
	if diff := cmp.Diff(want, text.String()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	text.Reset()
	if err := WriteDiff(&text, &api.JobDiff{Type: "None", ID: "proxies"}); err != nil || text.String() != "  no change of the job\n" {
		t.Errorf("no change: %q, %v", text.String(), err)
	}
}

func TestUpdatesAreCounted(t *testing.T) {
	var text strings.Builder
	err := WriteUpdates(&text, map[string]*api.DesiredUpdates{
		"b": {Ignore: 2, Place: 1, DestructiveUpdate: 3}, "a": {},
	})
	want := "  group \"a\": nothing to do\n  group \"b\": 1 to start, 3 to replace, 2 untouched\n"
	if diff := cmp.Diff(want, text.String()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestRenderSetsTheDefaults(t *testing.T) {
	got, err := Render(twoVariables, map[string]string{"name": `a ${b}`, "list": `["x", "y"]`})
	want := `
variable "name" {
  type        = string
  default     = "a $${b}"
  description = "An id."
}
variable "list" {
  type    = list(string)
  default = ["x", "y"]
}
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if _, err := Render(twoVariables, map[string]string{"nmae": "x"}); err == nil || !strings.Contains(err.Error(), `"nmae"`) {
		t.Errorf("unknown variable: %v", err)
	}
}

func TestMissingVariablesAreNamed(t *testing.T) {
	missing, err := Missing(twoVariables, map[string]string{"name": "x"})
	if diff := cmp.Diff([]string{"list"}, missing); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}
