package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/provider"
)

// checks keeps good verdicts for a while: quotas and permissions change by the
// day, and every question counts against the project's own rate limit.
type checks struct {
	mu   sync.Mutex // guards what follows; not held during calls
	good []provider.Verdict
	at   time.Time
}

// needed are the permissions that this provider uses.
var needed = []string{
	"compute.disks.create", "compute.disks.delete", "compute.disks.get", "compute.disks.list",
	"compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.getSerialPortOutput",
	"compute.instances.list", "compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.stop",
	"compute.subnetworks.use", "compute.zoneOperations.get", "compute.zoneOperations.list", "compute.regions.get",
}

// Check asks for the permissions once and for the quotas of each region, and
// gives a verdict for each zone.
func (p *Provider) Check(ctx context.Context) []provider.Verdict {
	p.checks.mu.Lock()
	if time.Since(p.checks.at) < p.timing.check {
		defer p.checks.mu.Unlock()
		return slices.Clone(p.checks.good)
	}
	p.checks.mu.Unlock()
	zones := slices.Sorted(slices.Values(p.settings.Zones))
	zones = slices.Compact(zones)
	began := time.Now()
	verdicts := make([]provider.Verdict, len(zones))
	permitted := p.checkPermissions(ctx)
	byRegion := p.checkRegions(ctx, zones)
	good := true
	for i, zone := range zones {
		v := byRegion[regionOf(zone)].of(zone)
		if v.Ready && permitted != nil {
			v.Ready, v.Reason, v.Message = false, permitted.Reason, permitted.Message
		}
		v.Target, v.Latency = zone, time.Since(began)
		verdicts[i], good = v, good && v.Ready
	}
	if good {
		p.checks.mu.Lock()
		p.checks.good, p.checks.at = slices.Clone(verdicts), time.Now()
		p.checks.mu.Unlock()
	}
	return verdicts
}

// region is what was learned of one.
type region struct {
	verdict provider.Verdict
	zones   []string
}

func (r region) of(zone string) provider.Verdict {
	v := r.verdict
	if v.Ready && len(r.zones) > 0 && !slices.Contains(r.zones, zone) {
		v.Ready, v.Reason = false, provider.APIError
		v.Message = fmt.Sprintf("region %s has no zone %s: want one of %s", regionOf(zone), zone, strings.Join(r.zones, ", "))
	}
	return v
}

func (p *Provider) checkRegions(ctx context.Context, zones []string) map[string]region {
	var mu sync.Mutex // guards byRegion
	byRegion := make(map[string]region)
	var group errgroup.Group
	for _, zone := range zones {
		name := regionOf(zone)
		mu.Lock()
		_, begun := byRegion[name]
		byRegion[name] = region{}
		mu.Unlock()
		if begun {
			continue
		}
		group.Go(func() error {
			found := p.checkRegion(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			byRegion[name] = found
			return nil
		})
	}
	_ = group.Wait() // the functions give no error
	return byRegion
}

func (p *Provider) checkRegion(ctx context.Context, name string) region {
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return region{verdict: failed(ctx, err)}
	}
	defer cancel()
	found, err := opened.regions.Get(bounded, &computepb.GetRegionRequest{Project: p.settings.Project, Region: name}, p.retry())
	if err != nil {
		return region{verdict: failed(ctx, translate("get region "+name, err))}
	}
	r := region{verdict: p.headRoom(found)}
	for _, zone := range found.GetZones() {
		r.zones = append(r.zones, zoneOf(zone))
	}
	return r
}

// quotas are those that a machine needs, by what Google calls them.
var quotas = []struct{ metric, fact string }{
	{"INSTANCES", "instances_free"}, {"CPUS", "cpus_free"}, {"IN_USE_ADDRESSES", "addresses_free"},
}

// headRoom judges the quotas of a region.
func (p *Provider) headRoom(found *computepb.Region) provider.Verdict {
	facts := map[string]string{"region": found.GetName()}
	v := provider.Verdict{Ready: true, Reason: provider.Reachable, Message: "the project can launch machines here", Facts: facts}
	for _, quota := range quotas {
		if quota.metric == "IN_USE_ADDRESSES" && !p.settings.external {
			continue
		}
		for _, q := range found.GetQuotas() {
			if q.GetMetric() != quota.metric {
				continue
			}
			free := int64(max(q.GetLimit()-q.GetUsage(), 0))
			facts[quota.fact] = strconv.FormatInt(free, 10)
			if free == 0 {
				v.Ready, v.Reason = false, provider.QuotaExhausted
				v.Message = fmt.Sprintf("quota %s of region %s is used up (%.0f): raise it, or add zones of another region", quota.metric, found.GetName(), q.GetLimit())
			}
		}
	}
	if status := found.GetStatus(); status == "DOWN" {
		v.Ready, v.Reason, v.Message = false, provider.Unreachable, "Google says that region "+found.GetName()+" is down"
	}
	return v
}

// checkPermissions gives a verdict when one is missing. It asks the Resource
// Manager, which alone can tell; a project where that API is disabled is not
// held against the account.
func (p *Provider) checkPermissions(ctx context.Context) *provider.Verdict {
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return nil // each region says so
	}
	defer cancel()
	wanted := slices.Clone(needed)
	if p.settings.external {
		wanted = append(wanted, "compute.subnetworks.useExternalIp")
	}
	granted, err := testPermissions(bounded, opened.http, p.settings, wanted)
	if err != nil {
		p.env.Logger.Debug("permissions are unknown", "error", err)
		return nil
	}
	missing := slices.DeleteFunc(wanted, func(one string) bool { return slices.Contains(granted, one) })
	if len(missing) == 0 {
		return nil
	}
	v := no(provider.Forbidden, "the account lacks %s on project %s: give it the role Compute Instance Admin (v1)", strings.Join(missing, ", "), p.settings.Project)
	return &v
}

// resourceManager answers for permissions on a project.
const resourceManager = "https://cloudresourcemanager.googleapis.com"

func testPermissions(ctx context.Context, client *http.Client, s settings, wanted []string) ([]string, error) {
	body, err := json.Marshal(map[string]any{"permissions": wanted})
	if err != nil {
		return nil, err
	}
	url := strings.TrimSuffix(orDefault(s.Endpoint, resourceManager), "/") + "/v1/projects/" + s.Project + ":testIamPermissions"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxLogged))
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s: %w", response.Status, err)
	}
	var answer struct{ Permissions []string }
	return answer.Permissions, json.Unmarshal(content, &answer)
}

func no(reason provider.Reason, format string, args ...any) provider.Verdict {
	return provider.Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// failed is the verdict for a call that did.
func failed(ctx context.Context, err error) provider.Verdict {
	switch {
	case ctx.Err() != nil || provider.IsCanceled(err):
		return no(provider.Timeout, "Google did not answer within the check's time: %v", err)
	case status(err) == http.StatusUnauthorized, strings.Contains(err.Error(), "refuses the credentials"), strings.Contains(err.Error(), "credentials_file"),
		strings.Contains(err.Error(), "no Application Default Credentials"):
		return no(provider.Unauthorized, "%v", err)
	case status(err) == http.StatusForbidden:
		return no(provider.Forbidden, "%v", err)
	case status(err) == 0:
		return no(provider.Unreachable, "%v", err)
	default:
		return no(provider.APIError, "%v", err)
	}
}
