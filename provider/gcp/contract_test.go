package gcp

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/gcp/computetest"
	"github.com/egress-proxies/egress/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testProject = "test-project-1"

// fast is as defaultTiming, for tests.
var fast = timing{
	backoff: time.Millisecond, backoffMax: 5 * time.Millisecond,
	operation: 30 * time.Second, again: time.Millisecond, cleanup: 10 * time.Second,
	watch: 10 * time.Millisecond, watchMax: 20 * time.Millisecond,
	console: 5 * time.Millisecond, consoleIdle: 20 * time.Millisecond,
}

// world is a project and a credentials file for it.
type world struct {
	*computetest.Server
	credentials string
	options     map[string]any
	timing      timing
	logger      hclog.Logger
}

func newWorld(t *testing.T, config computetest.Config) *world {
	t.Helper()
	config.Project = testProject
	server, err := computetest.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: server, credentials: filepath.Join(t.TempDir(), "key.json"), timing: fast, logger: hclog.NewNullLogger()}
	w.options = map[string]any{
		"project": testProject, "zones": []any{"europe-west1-b", "europe-west1-c"},
		"credentials_file": w.credentials, "endpoint": server.URL(),
	}
	if err := os.WriteFile(w.credentials, server.Credentials(), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		if problems := server.Problems(); len(problems) > 0 {
			t.Errorf("requests that Google would refuse:\n%s", strings.Join(problems, "\n"))
		}
	})
	return w
}

// provider is the plugin, started anew.
func (w *world) provider(t *testing.T, cluster string) *Provider {
	t.Helper()
	settings, err := parse(w.options)
	if err != nil {
		t.Fatal(err)
	}
	p := build(settings, provider.Env{Cluster: cluster, Node: "node", StateDir: t.TempDir(), Logger: w.logger}, w.timing)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// in is a provider over the same project with other options.
func (w *world) in(t *testing.T, options map[string]any) *Provider {
	t.Helper()
	other := *w
	other.options = map[string]any{}
	for _, set := range []map[string]any{w.options, options} {
		for key, value := range set {
			other.options[key] = value
		}
	}
	return other.provider(t, "contract")
}

func spec(*testing.T) provider.Spec {
	return provider.Spec{Port: 3128, UserData: []byte("#cloud-config\n")}
}

// named is a spec for tests outside of the suite.
func named(t *testing.T) provider.Spec {
	s := spec(t)
	s.Name = provider.Name("contract", "0f0e0d0c-0000-4000-8000-000000000000", t.Name())
	s.Labels = provider.Labels{Cluster: "contract", Namespace: "default", Job: "Job/With Capitals", Group: "g", Alloc: "0f0e0d0c",
		Task: t.Name(), Node: "node", CreatedAt: time.Now().UTC().Truncate(time.Second)}
	return s
}

func TestContract(t *testing.T) {
	w := newWorld(t, computetest.Config{Delay: 10 * time.Millisecond, PageSize: 1})
	h := providertest.Harness{
		New:         func(t *testing.T, cluster string) provider.Provider { return w.provider(t, cluster) },
		Spec:        spec,
		End:         func(_ *testing.T, i provider.Instance) { w.Shutdown(i.Name) },
		Count:       func(_ *testing.T, name string) int { return w.Count(name) },
		UnknownZone: "europe-west9-x",
	}
	// A plugin that was killed after the insert was sent, while the operation
	// ran, and after somebody had removed the machine and kept its disk.
	insert := func(t *testing.T, spec provider.Spec) {
		if _, err := w.provider(t, spec.Labels.Cluster).Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	h.Partials = []providertest.Partial{
		{Name: "inserted", Make: insert},
		{Name: "provisioning", Make: func(t *testing.T, spec provider.Spec) {
			insert(t, spec)
			w.SetStatus(spec.Name, "STAGING")
			t.Cleanup(func() { w.SetStatus(spec.Name, "RUNNING") })
			time.AfterFunc(50*time.Millisecond, func() { w.SetStatus(spec.Name, "RUNNING") })
		}},
		{Name: "stopped", Make: func(t *testing.T, spec provider.Spec) {
			insert(t, spec)
			w.Shutdown(spec.Name)
		}},
		{Name: "disk", Make: func(t *testing.T, spec provider.Spec) {
			insert(t, spec)
			w.LoseMachine(spec.Name)
		}},
	}
	for name, f := range map[string]struct {
		fault computetest.Fault
		class error
	}{
		"401":                   {computetest.Fault{Call: "instances.insert", Status: 401, Reason: "authError", Message: "Invalid Credentials"}, provider.ErrPermanent},
		"403 disabled":          {computetest.Fault{Status: 403, Reason: "SERVICE_DISABLED", Message: "Compute Engine API has not been used in project 1 before or it is disabled. Enable it by visiting https://console.developers.google.com/"}, provider.ErrPermanent},
		"403 disabled, old":     {computetest.Fault{Call: "instances.insert", Status: 403, Reason: "accessNotConfigured", Message: "Access Not Configured."}, provider.ErrPermanent},
		"403 permission":        {computetest.Fault{Call: "instances.insert", Status: 403, Reason: "forbidden", Message: "Required 'compute.instances.create' permission for 'projects/x'"}, provider.ErrPermanent},
		"403 quota":             {computetest.Fault{Call: "instances.insert", Status: 403, Reason: "quotaExceeded", Message: "Quota 'IN_USE_ADDRESSES' exceeded. Limit: 8.0 in region europe-west1."}, provider.ErrQuotaExceeded},
		"403 rate":              {computetest.Fault{Call: "instances.insert", Status: 403, Reason: "rateLimitExceeded", Message: "Rate Limit Exceeded"}, provider.ErrTransient},
		"404 image":             {computetest.Fault{Call: "instances.insert", Status: 404, Reason: "notFound", Message: "The resource 'projects/x/global/images/family/y' was not found"}, provider.ErrPermanent},
		"412":                   {computetest.Fault{Call: "instances.insert", Status: 412, Reason: "conditionNotMet", Message: "Constraint constraints/compute.vmExternalIpAccess violated for project 1."}, provider.ErrPermanent},
		"429":                   {computetest.Fault{Call: "instances.insert", Status: 429, Reason: "rateLimitExceeded", Message: "Too many requests"}, provider.ErrTransient},
		"500":                   {computetest.Fault{Call: "instances.insert", Status: 500, Reason: "backendError", Message: "Internal error"}, provider.ErrTransient},
		"500 after its effect":  {computetest.Fault{Call: "instances.insert", Status: 500, Reason: "backendError", Message: "Internal error", After: true}, provider.ErrTransient},
		"503":                   {computetest.Fault{Call: "zoneOperations.wait", Times: maxTries, Status: 503, Reason: "backendError", Message: "Service unavailable"}, provider.ErrTransient},
		"cut":                   {computetest.Fault{Call: "instances.insert", Cut: true, After: true}, provider.ErrTransient},
		"truncated":             {computetest.Fault{Call: "instances.insert", Truncate: true, After: true}, provider.ErrTransient},
		"stalled":               {computetest.Fault{Call: "instances.insert", Stall: true, After: true}, provider.ErrTransient},
		"the list":              {computetest.Fault{Call: "instances.aggregatedList", Status: 500, Message: "Internal error"}, provider.ErrTransient},
		"operation quota":       {computetest.Fault{Call: "instances.insert", Operation: &computetest.OperationError{Code: "QUOTA_EXCEEDED", Message: "Quota 'CPUS' exceeded.  Limit: 24.0 in region europe-west1."}}, provider.ErrQuotaExceeded},
		"operation stockout":    {computetest.Fault{Call: "instances.insert", Operation: &computetest.OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "The zone does not have enough resources available", Status: 503}}, provider.ErrQuotaExceeded},
		"operation permission":  {computetest.Fault{Call: "instances.insert", Operation: &computetest.OperationError{Code: "PERMISSIONS_ERROR", Message: "no"}}, provider.ErrPermanent},
		"operation rate":        {computetest.Fault{Call: "instances.insert", Operation: &computetest.OperationError{Code: "RESOURCE_OPERATION_RATE_EXCEEDED", Message: "slow down"}}, provider.ErrTransient},
		"operation of tomorrow": {computetest.Fault{Call: "instances.insert", Operation: &computetest.OperationError{Code: "SOMETHING_NEW", Message: "?", Status: 500}}, provider.ErrTransient},
	} {
		h.Faults = append(h.Faults, providertest.Fault{Name: name, Class: f.class, Provider: func(t *testing.T) provider.Provider {
			w.Heal()
			w.Fail(f.fault)
			t.Cleanup(w.Heal)
			return w.in(t, map[string]any{"call_timeout": "1s"})
		}})
	}
	h.Faults = append(h.Faults, providertest.Fault{Name: "refused credentials", Class: provider.ErrPermanent, Provider: func(t *testing.T) provider.Provider {
		w.Fail(computetest.Fault{Call: "token", Status: http.StatusBadRequest, Reason: "invalid_grant", Message: "Account has been deleted"})
		t.Cleanup(w.Heal)
		return w.provider(t, "contract")
	}})
	providertest.Run(t, h)
}
