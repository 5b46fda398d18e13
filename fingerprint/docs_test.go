package fingerprint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egress-proxies/egress/provider"
)

// reasons are the constants of type Reason in the contract.
func reasons(t *testing.T) []provider.Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../provider/checker.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []provider.Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, provider.Reason(text))
		}
		return true
	})
	if !slices.Contains(all, provider.PoolNearlyFull) {
		t.Fatalf("only %v were found", all)
	}
	return all
}

func TestEveryReasonHasAdvice(t *testing.T) {
	for _, reason := range reasons(t) {
		if Advice(reason) == "" {
			t.Errorf("no advice for %s", reason)
		}
	}
}

func TestTheDocsExplainEveryReasonFactAndMetric(t *testing.T) {
	text, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, reason := range reasons(t) {
		names = append(names, string(reason))
	}
	for fact := range moving {
		names = append(names, fact)
	}
	for _, size := range sizes {
		names = append(names, size.published)
	}
	descs := make(chan *prometheus.Desc, 100)
	New(nil, Options{}).Describe(descs)
	close(descs)
	for desc := range descs {
		_, name, _ := strings.Cut(desc.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		names = append(names, name)
	}
	b := newBoard()
	b.take(round("<target> Reachable"))
	for name := range b.result().Attributes {
		names = append(names, strings.Replace(name, ".hv.", ".<provider>.", 1))
	}
	var rows strings.Builder // the first cells of all tables
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			rows.WriteString(cells[1])
		}
	}
	for _, name := range names {
		if !strings.Contains(rows.String(), "`"+name+"`") {
			t.Errorf("docs/health.md has no row for %s", name)
		}
	}
}
