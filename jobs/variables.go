package jobs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// Variable is one that a jobspec declares.
type Variable struct {
	// Name is by which it is set.
	Name string
	// Type is its type as written: "string", "list(string)".
	Type string
	// Default is its default as written; empty when it must be set.
	Default string
	// Description is the author's.
	Description string
}

// Declared are the variables of a jobspec in their order.
func Declared(source string) ([]Variable, error) {
	file, diagnostics := hclsyntax.ParseConfig([]byte(source), "job", hcl.InitialPos)
	if diagnostics.HasErrors() {
		return nil, fmt.Errorf("parse the jobspec: %w", diagnostics)
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return nil, fmt.Errorf("parse the jobspec: it is %T, want HCL's native syntax", file.Body)
	}
	var declared []Variable
	for _, block := range body.Blocks {
		if block.Type != "variable" || len(block.Labels) != 1 {
			continue
		}
		text := func(key string) string {
			attribute := block.Body.Attributes[key]
			if attribute == nil {
				return ""
			}
			return string(attribute.Expr.Range().SliceBytes(file.Bytes))
		}
		variable := Variable{Name: block.Labels[0], Type: text("type"), Default: text("default")}
		if attribute := block.Body.Attributes["description"]; attribute != nil {
			if value, diagnostics := attribute.Expr.Value(nil); !diagnostics.HasErrors() && value.Type() == cty.String {
				variable.Description = value.AsString()
			}
		}
		declared = append(declared, variable)
	}
	return declared, nil
}

// variablesFile is the content of a variables file that sets what is given.
func variablesFile(source string, given map[string]string) (string, error) {
	if len(given) == 0 {
		return "", nil
	}
	declared, err := Declared(source)
	if err != nil {
		return "", err
	}
	var file strings.Builder
	for _, name := range slices.Sorted(maps.Keys(given)) {
		variable, err := find(declared, name)
		if err != nil {
			return "", err
		}
		value, err := literal(variable, given[name])
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&file, "%s = %s\n", name, value)
	}
	return file.String(), nil
}

// find gives the variable of a name.
func find(declared []Variable, name string) (Variable, error) {
	i := slices.IndexFunc(declared, func(v Variable) bool { return v.Name == name })
	if i < 0 {
		return Variable{}, unknownVariable(declared, name)
	}
	return declared[i], nil
}

// literal is a value as HCL. A string stands as it is, as with Nomad's own
// -var, so that nobody has to quote it twice.
func literal(variable Variable, value string) (string, error) {
	if !utf8.ValidString(value) {
		return "", fmt.Errorf("variable %q: value %q: want UTF-8", variable.Name, value)
	}
	if variable.Type == "string" {
		return quote(value), nil
	}
	// Parsed as it will stand in the file: an expression alone may span lines
	// that don't belong to it there.
	file, diagnostics := hclsyntax.ParseConfig([]byte(variable.Name+" = "+value+"\n"), variable.Name, hcl.InitialPos)
	attributes := hcl.Attributes{}
	if !diagnostics.HasErrors() {
		attributes, diagnostics = file.Body.JustAttributes()
	}
	if diagnostics.HasErrors() || len(attributes) != 1 {
		return "", wrongValue(variable, value, nil)
	}
	if err := checkValue(variable, value, attributes[variable.Name].Expr); err != nil {
		return "", err
	}
	return value, nil
}

// writing guards hclwrite, which formats through a variable of its package
// (formatSpaces, as of hcl v2.9).
var writing sync.Mutex

// quote is a string as HCL.
func quote(value string) string {
	writing.Lock()
	defer writing.Unlock()
	return string(hclwrite.TokensForValue(cty.StringVal(value)).Bytes())
}

func names(declared []Variable) string {
	var all []string
	for _, variable := range declared {
		all = append(all, variable.Name)
	}
	return strings.Join(all, ", ")
}
