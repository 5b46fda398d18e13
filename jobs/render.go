package jobs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Render gives a jobspec in which the variables that were given have their
// values as defaults: a file that `nomad job run` takes as it is, and that can
// be kept and changed.
func Render(source string, given map[string]string) (string, error) {
	declared, err := Declared(source)
	if err != nil {
		return "", err
	}
	file, diagnostics := hclwrite.ParseConfig([]byte(source), "job", hcl.InitialPos)
	if diagnostics.HasErrors() {
		return "", fmt.Errorf("parse the jobspec: %w", diagnostics)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		variable, err := find(declared, name)
		if err != nil {
			return "", err
		}
		value, err := literal(variable, given[name])
		if err != nil {
			return "", err
		}
		expression, diagnostics := hclwrite.ParseConfig([]byte("x = "+value+"\n"), name, hcl.InitialPos)
		if diagnostics.HasErrors() {
			return "", fmt.Errorf("variable %q: value %q: %w", name, value, diagnostics)
		}
		block := file.Body().FirstMatchingBlock("variable", []string{name})
		block.Body().SetAttributeRaw("default", expression.Body().GetAttribute("x").Expr().BuildTokens(nil))
	}
	return string(hclwrite.Format(file.Bytes())), nil
}

// Missing are the variables without a default that were not given.
func Missing(source string, given map[string]string) ([]string, error) {
	declared, err := Declared(source)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, variable := range declared {
		if _, ok := given[variable.Name]; !ok && strings.TrimSpace(variable.Default) == "" {
			missing = append(missing, variable.Name)
		}
	}
	return missing, nil
}
