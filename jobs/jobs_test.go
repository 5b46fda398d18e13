package jobs

import (
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

func TestJobspecsAreFormattedAndTheirVariablesTyped(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			source, err := Source(name)
			if err != nil {
				t.Fatal(err)
			}
			if string(hclwrite.Format([]byte(source))) != source {
				t.Errorf("run: nomad fmt jobs/%s%s", name, extension)
			}
			declared, err := Declared(source)
			if err != nil {
				t.Fatal(err)
			}
			if len(declared) == 0 {
				t.Error("no variables")
			}
			for _, variable := range declared {
				if variable.Type == "" {
					t.Errorf("variable %s has no type", variable.Name)
				}
			}
		})
	}
}

func TestSourceOfAnUnknownNameTellsTheKnown(t *testing.T) {
	_, err := Source("proces")
	if err == nil || !strings.Contains(err.Error(), `"proces"`) || !strings.Contains(err.Error(), "process") {
		t.Errorf("err = %v, want the given and the known names", err)
	}
}

const twoVariables = `
variable "name" {
  type        = string
  default     = "x"
  description = "An id."
}
variable "list" {
  type = list(string)
}
`

const typedVariables = `
variable "count" { type = number }
variable "on" { type = bool }
variable "rules" { type = list(object({ a = string, b = number })) }
variable "loose" {}
`

func TestVariablesFile(t *testing.T) {
	for _, test := range []struct {
		name  string
		typed bool
		given map[string]string
		want  string
		err   string
	}{
		{name: "mistyped name", given: map[string]string{"nmae": "x"}, err: `"nmae": the jobspec has none of that name: did you mean "name"? It has name, list`},
		{name: "unknown name", given: map[string]string{"elephants": "x"}, err: `"elephants": the jobspec has none of that name: want one of name, list`},
		{name: "not HCL", given: map[string]string{"list": "[a"}, err: `"list": value "[a": want list(string), such as ["x"]`},
		{name: "unquoted", given: map[string]string{"list": "a"}, err: `"list": value "a": want list(string), such as ["x"]`},
		{name: "no list", given: map[string]string{"list": "7"}, err: `"list": value "7": want list(string), such as ["x"]`},
		{name: "a wrong element", given: map[string]string{"list": `["a", {}]`}, err: `want list(string), such as ["x"]: `},
		{name: "no number", typed: true, given: map[string]string{"count": "x"}, err: `variable "count": value "x": want number, such as 10`},
		{name: "a fraction of a bool", typed: true, given: map[string]string{"on": "0.5"}, err: `variable "on": value "0.5": want bool, such as true`},
		{name: "a field is missing", typed: true, given: map[string]string{"rules": `[{a="x"}]`}, err: `want list(object({ a = string, b = number })), such as [{ a = "x", b = 10 }]: `},
		{name: "a second attribute smuggled in", given: map[string]string{"list": "[]\nname = 1"}, err: `want list(string)`},
		{name: "of no type", typed: true, given: map[string]string{"loose": "[1"}, err: `variable "loose": value "[1": want a value`},
		{name: "of no type, good", typed: true, given: map[string]string{"loose": "[1]"}, want: "loose = [1]\n"},
		{name: "a number as a string", typed: true, given: map[string]string{"count": `"5"`}, want: "count = \"5\"\n"},
		{name: "nothing given", want: ""},
		{name: "string as it is", given: map[string]string{"name": `a "b" ${c}`}, want: `name = "a \"b\" $${c}"` + "\n"},
		{name: "others as HCL", given: map[string]string{"list": `["a"]`, "name": "n"}, want: "list = [\"a\"]\nname = \"n\"\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			source := twoVariables
			if test.typed {
				source = typedVariables
			}
			got, err := variablesFile(source, test.given)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("err = %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("file = %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// TestSeveralJobsAreRenderedAtOnce is for the race detector.
func TestSeveralJobsAreRenderedAtOnce(t *testing.T) {
	var rendering sync.WaitGroup
	for range 4 {
		rendering.Go(func() {
			if _, err := variablesFile(twoVariables, map[string]string{"name": "n"}); err != nil {
				t.Error(err)
			}
		})
	}
	rendering.Wait()
}

func TestDeclaredTellsWhatAPersonNeeds(t *testing.T) {
	declared, err := Declared(twoVariables)
	if err != nil {
		t.Fatal(err)
	}
	want := []Variable{
		{Name: "name", Type: "string", Default: `"x"`, Description: "An id."},
		{Name: "list", Type: "list(string)"},
	}
	if len(declared) != 2 || declared[0] != want[0] || declared[1] != want[1] {
		t.Errorf("declared = %+v, want %+v", declared, want)
	}
}

// FuzzVariablesFile: whatever is given sets the two variables and nothing else,
// and a string arrives as it was given.
func FuzzVariablesFile(f *testing.F) {
	f.Add("x", "[]")
	f.Add("${a}%{b}\"\\\n", `["a"]`)
	f.Add("", "1 # comment")
	f.Add("0", "0\n%0")
	f.Add("", "\xdb")
	f.Add("\x00", "<<E\na\nE\n")
	f.Fuzz(func(t *testing.T, name, list string) {
		text, err := variablesFile(twoVariables, map[string]string{"name": name, "list": list})
		if err != nil {
			return
		}
		file, diagnostics := hclsyntax.ParseConfig([]byte(text), "variables", hcl.InitialPos)
		if diagnostics.HasErrors() {
			t.Fatalf("%q: %v", text, diagnostics)
		}
		attributes, diagnostics := file.Body.JustAttributes()
		if diagnostics.HasErrors() || len(attributes) != 2 {
			t.Fatalf("%q sets %d variables: %v", text, len(attributes), diagnostics)
		}
		value, diagnostics := attributes["name"].Expr.Value(nil)
		// cty normalises strings to NFC.
		if diagnostics.HasErrors() || value.AsString() != cty.NormalizeString(name) {
			t.Fatalf("name = %#v, want %q: %v", value, name, diagnostics)
		}
	})
}
