package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/forward"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// Create starts the instance, or adopts it when it runs already.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	dir, err := p.find(ctx, provider.Ref{Name: spec.Name, Zone: spec.Zone})
	if err != nil {
		return provider.Instance{}, err
	}
	plan, err := p.plan(spec)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return provider.Instance{}, classify("make the state directory", err)
	}
	unlock, err := p.lock(ctx, spec.Name)
	if err != nil {
		return provider.Instance{}, err
	}
	defer unlock()
	snapshot, err := p.adopt(ctx, dir)
	if err != nil {
		return provider.Instance{}, err
	}
	if snapshot.Phase == supervise.Running {
		if spec.Command == "" && !spec.Auth.IsZero() {
			// They may have changed since the start that is adopted.
			if err := rotate(ctx, dir, snapshot.Plan, spec.Auth); err != nil {
				p.log.Warn("credentials of an adopted instance are those of its start", "instance", spec.Name, "error", err)
			}
		}
		return p.instance(spec.Name, snapshot)
	}
	if err := supervise.Destroy(ctx, dir); err != nil {
		return provider.Instance{}, classify("remove what an earlier start left", err)
	}
	snapshot, err = p.launch(ctx, dir, plan)
	if err != nil {
		// The cause of the failure may be the end of ctx.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		return provider.Instance{}, errors.Join(err, supervise.Destroy(clean, dir))
	}
	return p.instance(spec.Name, snapshot)
}

// cleanupTime bounds the removal of what a failed start made.
const cleanupTime = 15 * time.Second

// startTime bounds how long a supervisor may need to start its process: some
// tens of milliseconds when the node is not overloaded.
const startTime = 20 * time.Second

// adopt looks at what exists and waits for a start that is under way, by a
// supervisor whose plugin was killed.
func (p *Provider) adopt(ctx context.Context, dir string) (supervise.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		snapshot, err := supervise.Inspect(dir)
		if err != nil {
			// Destroy needs no readable records.
			p.log.Warn("an instance's records can't be read and are made again", "instance", filepath.Base(dir), "error", err)
			return supervise.Snapshot{Phase: supervise.Partial}, nil
		}
		if snapshot.Phase != supervise.Starting {
			return snapshot, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return supervise.Snapshot{}, ctx.Err()
		}
	}
}

// launch starts a supervisor for the plan and waits until its process runs.
func (p *Provider) launch(ctx context.Context, dir string, plan supervise.Plan) (supervise.Snapshot, error) {
	if err := supervise.Prepare(dir, plan); err != nil {
		return supervise.Snapshot{}, classify("write the plan", err)
	}
	provider.Report(ctx, "starting %s", plan.Args[0])
	started, err := supervise.Start(dir)
	if err != nil {
		return supervise.Snapshot{}, classify("start the supervisor", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	status, err := started.Await(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return supervise.Snapshot{}, ctx.Err()
	case err != nil:
		return supervise.Snapshot{}, provider.Transientf("start the supervisor: %w%s", err, lastWords(dir))
	case status.Taken:
		// One that an earlier plugin started came first.
		return p.adopt(ctx, dir)
	case status.Permanent:
		return supervise.Snapshot{}, provider.Permanentf("start %s: %s", plan.Args[0], status.Error)
	case !status.Started:
		return supervise.Snapshot{}, provider.Transientf("start %s: %s", plan.Args[0], status.Error)
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		return supervise.Snapshot{}, provider.Transientf("read the state of a new instance: %w", err)
	}
	return snapshot, nil
}

// lastWords is what a supervisor that broke down wrote.
func lastWords(dir string) string {
	words := supervise.Log(dir)
	if words == "" {
		return ""
	}
	return ": " + words
}

// plan turns a spec into what the supervisor runs.
func (p *Provider) plan(spec provider.Spec) (supervise.Plan, error) {
	if err := p.Validate(spec); err != nil {
		return supervise.Plan{}, err
	}
	account, err := p.account(spec)
	if err != nil {
		return supervise.Plan{}, err
	}
	kept, err := json.Marshal(meta{
		Labels: spec.Labels, Address: reachable(spec.Listen), Port: spec.Port, CreatedAt: time.Now().UTC(),
	})
	if err != nil {
		return supervise.Plan{}, provider.Permanentf("labels: %w", err)
	}
	plan := supervise.Plan{
		Account:     account,
		LogMaxBytes: int64(p.options.LogMaxMiB) << 20,
		Meta:        kept,
	}
	if spec.Command != "" {
		plan.Path = spec.Command
		plan.Args = append([]string{spec.Command}, spec.Args...)
		plan.Env = commandEnv(spec)
		plan.Dir = spec.Dir
		return plan, nil
	}
	config, err := p.proxyConfig(spec)
	if err != nil {
		return supervise.Plan{}, provider.Permanentf("args: %w", err)
	}
	plan.Self, plan.Control = true, true
	config.ControlFD = supervise.ControlFD
	plan.Args = []string{"egress", "proxy", forward.StdinFlag}
	if plan.Input, err = json.Marshal(config); err != nil {
		return supervise.Plan{}, provider.Permanentf("args: %w", err)
	}
	return plan, nil
}

// commandEnv is the task's environment and what the task asks of a proxy. The
// credentials are here since a command has no other way to get them that would
// not show in a list of processes.
func commandEnv(spec provider.Spec) []string {
	env := append([]string(nil), spec.Env...)
	for _, variable := range [][2]string{
		{"EGRESS_LISTEN", spec.Listen},
		{"EGRESS_PORT", strconv.Itoa(spec.Port)},
		{"EGRESS_BIND", spec.Bind},
		{"EGRESS_USERNAME", spec.Auth.Username},
		{"EGRESS_PASSWORD", spec.Auth.Password},
	} {
		if variable[1] != "" {
			env = append(env, variable[0]+"="+variable[1])
		}
	}
	return env
}

// instance describes what a snapshot shows.
func (p *Provider) instance(name string, snapshot supervise.Snapshot) (provider.Instance, error) {
	m, err := decodeMeta(snapshot.Plan)
	if err != nil {
		return provider.Instance{}, provider.Transientf("read the plan of %s: %w", name, err)
	}
	instance := provider.Instance{
		Ref:       provider.Ref{Name: name, Zone: Zone},
		Address:   m.Address,
		Addresses: []string{m.Address},
		Port:      m.Port,
		Labels:    m.Labels,
		CreatedAt: m.CreatedAt,
	}
	if child := snapshot.Run.Child; child.PID != 0 {
		instance.ID = fmt.Sprintf("pid %d (started %d)", child.PID, child.Start)
	}
	switch snapshot.Phase {
	case supervise.Starting:
		instance.State = provider.Provisioning
	case supervise.Running:
		instance.State = provider.Running
		if snapshot.Stopping {
			instance.State = provider.Stopping
		}
	case supervise.Ended:
		exit := snapshot.Exit
		instance.State, instance.Reason = provider.Stopped, exit.Reason()
		instance.Exit = &provider.Exit{Code: exit.Code, Signal: exit.Signal, OOMKilled: exit.OOMKilled}
	case supervise.Lost:
		instance.State, instance.Reason = provider.Stopped, snapshot.LostReason()
		instance.Exit = &provider.Exit{Code: 137, Signal: 9}
	}
	return instance, nil
}

func decodeMeta(plan supervise.Plan) (meta, error) {
	var m meta
	return m, json.Unmarshal(plan.Meta, &m)
}
