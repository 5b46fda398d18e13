package fake_test

import (
	"testing"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
	"github.com/egress-proxies/egress/provider/providertest"
)

func TestContract(t *testing.T) {
	world := fake.NewWorld()
	options := func(cluster string) fake.Options { return fake.Options{World: world, Cluster: cluster} }
	harness := providertest.Harness{
		New:         func(_ *testing.T, cluster string) provider.Provider { return fake.New(options(cluster)) },
		Spec:        func(*testing.T) provider.Spec { return provider.Spec{Port: 3128} },
		UnknownZone: "nowhere",
		Count:       func(*testing.T, string) int { return world.Pieces() },
		End: func(_ *testing.T, instance provider.Instance) {
			world.End(instance.Name, provider.Exit{Signal: 9}, "killed by signal 9")
		},
	}
	for _, step := range fake.CreateSteps {
		harness.Partials = append(harness.Partials, providertest.Partial{
			Name: string(step),
			Make: func(t *testing.T, spec provider.Spec) {
				p := fake.New(options(spec.Labels.Cluster))
				p.Interrupt(step)
				if _, err := p.Create(t.Context(), spec); err == nil {
					t.Fatal("the interrupted create succeeded")
				}
			},
		})
		for _, class := range []error{provider.ErrQuotaExceeded, provider.ErrTransient, provider.ErrPermanent} {
			harness.Faults = append(harness.Faults, providertest.Fault{
				Name:  string(step) + " " + class.Error(),
				Class: class,
				Provider: func(*testing.T) provider.Provider {
					p := fake.New(options("contract"))
					p.Fail(step, 1, class)
					return p
				},
			})
		}
	}
	providertest.Run(t, harness)
}

func TestHoldWaitsUntilReleased(t *testing.T) {
	p := fake.New(fake.Options{})
	reached, release := p.Hold(fake.StepStart)
	done := make(chan error, 1)
	go func() {
		_, err := p.Create(t.Context(), provider.Spec{Name: "eg-held"})
		done <- err
	}()
	<-reached
	if created := p.World().Created(); created != 1 {
		t.Errorf("%d instances were defined while the start is held, want 1", created)
	}
	select {
	case err := <-done:
		t.Fatalf("create returned %v while it was held", err)
	default:
	}
	release()
	if err := <-done; err != nil {
		t.Errorf("create after the release: %v", err)
	}
}
