package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/lease/api"
)

// demo is the running cluster with what the tour has learned about it.
type demo struct {
	*cluster.Cluster
	// nomadBin and egressBin are the programs behind the names on the screen.
	nomadBin, egressBin string
	// lease is the root of one replica of the lease service; each will do.
	lease string
}

const (
	fleetSize = 3
	// replicas is what the jobspec of the lease service starts.
	replicas = 2
	// patience bounds each step of the tour.
	patience = time.Minute
)

// deploy runs the two jobs and waits until what they promise is there.
func (d *demo) deploy(ctx context.Context) error {
	fmt.Printf("\nexport NOMAD_ADDR=%s\nexport CONSUL_HTTP_ADDR=%s\n", d.Nomad.Address, d.Consul.Address)
	say("A fleet of proxies. Each has an exit address of its own, here of the loopback network.")
	process, err := d.spec("process")
	if err != nil {
		return err
	}
	if err := d.show(ctx, "nomad", "job", "run", "-var", "count="+strconv.Itoa(fleetSize),
		"-var", `attributes={ country = "DE" }`, "-var", "bind=127.0.1.1${NOMAD_ALLOC_INDEX}", process); err != nil {
		return err
	}
	say("The service that leases them to crawlers: two replicas, of which one leads.")
	lease, err := d.spec("lease")
	if err != nil {
		return err
	}
	if err := d.show(ctx, "nomad", "job", "run", "-var", "binary="+d.Plugin,
		"-var", "consul="+d.Consul.Address, lease); err != nil {
		return err
	}
	return d.until(ctx, "the lease service is healthy in Consul", func(ctx context.Context) error {
		entries, err := d.Consul.Passing(ctx, "egress-lease")
		if err != nil {
			return err
		}
		if len(entries) != replicas {
			return fmt.Errorf("%d replicas of egress-lease pass, want %d", len(entries), replicas)
		}
		service := entries[0].Service
		d.lease = "http://" + net.JoinHostPort(service.Address, strconv.Itoa(service.Port))
		return nil
	})
}

// spec is the path of a jobspec of the project.
func (d *demo) spec(name string) (string, error) {
	path := filepath.Join("jobs", name+".nomad.hcl")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: run the demo in the project's directory", err)
	}
	return path, nil
}

// tour shows what a user does.
func (d *demo) tour(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.lookAround, d.crawl, d.crash} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) lookAround(ctx context.Context) error {
	if err := d.show(ctx, "nomad", "job", "status", "proxies"); err != nil {
		return err
	}
	say("What works is what passes in Consul.")
	output, err := d.captureQuietly(ctx, "curl", "-sSf", "http://"+d.Consul.Address+"/v1/health/service/egress-proxy?passing")
	if err != nil {
		return err
	}
	var entries []*consul.ServiceEntry
	if err := json.Unmarshal(output, &entries); err != nil {
		return fmt.Errorf("read Consul's answer: %w", err)
	}
	if len(entries) != fleetSize {
		return fmt.Errorf("%d proxies pass in Consul, want %d", len(entries), fleetSize)
	}
	fmt.Println("(of the JSON, the essence)")
	for _, entry := range entries {
		service := entry.Service
		fmt.Printf("%s  %s:%d  %s  exit_ip=%s  country=%s\n", service.ID, service.Address, service.Port,
			entry.Checks.AggregatedStatus(), service.Meta["exit_ip"], service.Meta["country"])
	}
	return nil
}

// crawl leases a proxy, uses it, reports and releases.
func (d *demo) crawl(ctx context.Context) error {
	say("A crawler leases a proxy for a site.")
	output, err := d.capture(ctx, "curl", "-sSf", "-X", "POST", d.lease+api.PathLeases,
		"-d", `{"selector":"country=DE","target":"`+d.Origin.HTTPS+`","ttl":"2m","client":"demo"}`)
	if err != nil {
		return err
	}
	var granted api.Leases
	if err := json.Unmarshal(output, &granted); err != nil || len(granted.Leases) != 1 {
		return fmt.Errorf("read the lease: %d leases, %w", len(granted.Leases), err)
	}
	lease := granted.Leases[0]
	say("It fetches a page through it. The site sees the exit address as its client.")
	page, err := d.capture(ctx, "curl", "-sSf", "--proxy", lease.URL, "--cacert", d.Origin.CAFile, d.Origin.HTTPS+"/")
	if err != nil {
		return err
	}
	var seen struct {
		Client string `json:"client"`
	}
	if err := json.Unmarshal(page, &seen); err != nil || seen.Client != lease.ExitIP {
		return fmt.Errorf("the site saw %q, want the exit address %q: %w", seen.Client, lease.ExitIP, err)
	}
	say("Had the site refused it, the crawler would say so: the pair of exit and site cools down.")
	if _, err := d.capture(ctx, "curl", "-sSf", "-X", "POST", d.lease+api.PathLeases+"/"+lease.ID+"/report",
		"-d", `{"result":"blocked"}`); err != nil {
		return err
	}
	if err := d.show(ctx, "egress", "proxies", "--address", d.lease); err != nil {
		return err
	}
	say("And gives it back.")
	return d.show(ctx, "curl", "-sSf", "-o", "/dev/null", "-w", "%{http_code}\n", "-X", "DELETE", d.lease+api.PathLeases+"/"+lease.ID)
}

// crash kills one proxy and shows who notices.
func (d *demo) crash(ctx context.Context) error {
	entries, err := d.Consul.Passing(ctx, "egress-proxy")
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return errors.New("no proxy passes in Consul")
	}
	service := entries[0].Service
	victims, err := guard.Listeners(d.Dir, service.Port)
	if err != nil || len(victims) != 1 {
		return fmt.Errorf("processes that listen on port %d: %v, want one: %w", service.Port, victims, err)
	}
	say("A proxy dies: the process of " + service.Meta["instance"] + ".")
	fmt.Printf("\n$ kill -9 %d\n", victims[0].PID)
	died := time.Now()
	if err := victims[0].Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if err := d.until(ctx, "the lease service has noticed", func(ctx context.Context) error {
		entries, err := d.Consul.Passing(ctx, "egress-proxy")
		if err == nil && len(entries) == fleetSize {
			err = errors.New("all proxies pass still")
		}
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("(out of Consul after %.1f s)\n", time.Since(died).Seconds())
	if err := d.show(ctx, "egress", "proxies", "--address", d.lease); err != nil {
		return err
	}
	if err := d.until(ctx, "Nomad has replaced the proxy", func(ctx context.Context) error {
		entries, err := d.Consul.Passing(ctx, "egress-proxy")
		if err != nil || len(entries) != fleetSize {
			return fmt.Errorf("%d proxies pass, want %d: %w", len(entries), fleetSize, err)
		}
		alloc, _, err := d.Nomad.Client.Allocations().Info(service.Meta["alloc"], (&nomad.QueryOptions{}).WithContext(ctx))
		if err == nil && alloc.ClientStatus != nomad.AllocClientStatusRunning {
			err = fmt.Errorf("its allocation is %s", alloc.ClientStatus)
		}
		return err
	}); err != nil {
		return err
	}
	say(fmt.Sprintf("Nomad has started it again, and the lease service has it back: %.1f s in all.", time.Since(died).Seconds()))
	if err := d.show(ctx, "nomad", "alloc", "status", service.Meta["alloc"]); err != nil {
		return err
	}
	return d.show(ctx, "egress", "proxies", "--address", d.lease)
}

// captureQuietly is capture for output that is shown in another form.
func (d *demo) captureQuietly(ctx context.Context, name string, args ...string) ([]byte, error) {
	output, err := d.command(ctx, name, args...).Output()
	return output, failed(err, name, args)
}

func (d *demo) until(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return cluster.Until(ctx, what, condition)
}

// addresses is what one needs to go on alone.
func (d *demo) addresses(took time.Duration) {
	fmt.Printf(`
Ready after %.0f s.

  Nomad          %s
  Consul         http://%s
  lease service  %s
  test site      %s/ and %s/
                 (authority: %s)
  logs and data  %s
`, took.Seconds(), d.Nomad.Address, d.Consul.Address, d.lease, d.Origin.HTTP, d.Origin.HTTPS, d.Origin.CAFile, d.Dir)
}
