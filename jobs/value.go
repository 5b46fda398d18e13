package jobs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// checkValue fails unless a value, as it was parsed, is of the variable's type.
// The agent would say the same of "input.hcl:1", which is a file that nobody has.
func checkValue(variable Variable, value string, expression hcl.Expression) error {
	want, known := variable.kind()
	if !known {
		return nil // the agent's own affair
	}
	parsed, diagnostics := expression.Value(nil)
	if diagnostics.HasErrors() {
		return wrongValue(variable, value, nil)
	}
	_, err := convert.Convert(parsed, want)
	switch {
	case err == nil:
		return nil
	case want.IsPrimitiveType():
		return wrongValue(variable, value, nil) // the library would only repeat it
	default:
		return wrongValue(variable, value, err)
	}
}

// kind is the type that the jobspec declares; known is false without one, and
// with one that this version can't read.
func (v Variable) kind() (want cty.Type, known bool) {
	expression, diagnostics := hclsyntax.ParseExpression([]byte(v.Type), v.Name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		return cty.NilType, false
	}
	want, diagnostics = typeexpr.TypeConstraint(expression)
	return want, !diagnostics.HasErrors()
}

// wrongValue names the variable, what it was given and what it wants.
func wrongValue(variable Variable, value string, cause error) error {
	want := variable.Type
	if want == "" {
		want = "a value"
	}
	if kind, known := variable.kind(); known {
		if example := exampleOf(kind); example != "" {
			want += ", such as " + example
		}
	}
	err := fmt.Errorf("variable %q: value %q: want %s", variable.Name, value, want)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// exampleOf is a value of a type as it is written; empty when that would be long.
func exampleOf(kind cty.Type) string {
	switch {
	case kind == cty.Bool:
		return "true"
	case kind == cty.Number:
		return "10"
	case kind == cty.String:
		return `"x"`
	case kind.IsListType() || kind.IsSetType():
		if inner := exampleOf(kind.ElementType()); inner != "" {
			return "[" + inner + "]"
		}
	case kind.IsMapType():
		if inner := exampleOf(kind.ElementType()); inner != "" {
			return "{ key = " + inner + " }"
		}
	case kind.IsObjectType():
		var fields []string
		for name := range kind.AttributeTypes() {
			inner := exampleOf(kind.AttributeType(name))
			if inner == "" {
				return ""
			}
			fields = append(fields, name+" = "+inner)
		}
		slices.Sort(fields)
		return "{ " + strings.Join(fields, ", ") + " }"
	}
	return ""
}

// unknownVariable names the variable that was probably meant.
func unknownVariable(declared []Variable, name string) error {
	const close = 3 // a letter or two wrong, two swapped
	best, distance := "", close+1
	for _, variable := range declared {
		if d := levenshtein.Distance(strings.ToLower(name), variable.Name, nil); d < distance && d < len(variable.Name) {
			best, distance = variable.Name, d
		}
	}
	if best != "" {
		return fmt.Errorf("variable %q: the jobspec has none of that name: did you mean %q? It has %s", name, best, names(declared))
	}
	return fmt.Errorf("variable %q: the jobspec has none of that name: want one of %s", name, names(declared))
}
