package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// pollWait bounds one blocking query: the state of a deployment may change
// without a change of its allocations.
const pollWait = 2 * time.Second

// Follow tells the progress of a submission until it has succeeded or failed,
// and how it ended. evaluation is what Submit gave. When ctx ends, the job goes
// on.
func Follow(ctx context.Context, client *api.Client, job *api.Job, evaluation string, tell func(Event)) (Report, error) {
	if evaluation == "" {
		return Report{Outcome: Healthy, Message: "Nomad runs the job when it is due"}, nil
	}
	f := &watcher{client: client, job: *job.ID}
	eval, err := f.evaluated(ctx, evaluation)
	if err != nil {
		return Report{}, err
	}
	current, _, err := client.Jobs().Info(f.job, f.query(ctx, 0))
	if err != nil {
		return Report{}, agentError(client, "read job "+f.job, err)
	}
	progress := newProgress(current, eval)
	var index uint64
	for {
		seen, next, err := f.look(ctx, eval, index)
		if err != nil {
			return Report{}, err
		}
		index = next
		for _, event := range progress.events(seen) {
			tell(event)
		}
		report, done := progress.outcome(seen, time.Now())
		if !done {
			continue
		}
		report.Refusals, err = Explain(ctx, client, job, seen.unplaced)
		return report, err
	}
}

// watcher reads the state of a job.
type watcher struct {
	client *api.Client
	job    string
}

func (w *watcher) query(ctx context.Context, index uint64) *api.QueryOptions {
	return (&api.QueryOptions{WaitIndex: index, WaitTime: pollWait}).WithContext(ctx)
}

// evaluated waits until the scheduler is done with an evaluation.
func (w *watcher) evaluated(ctx context.Context, id string) (*api.Evaluation, error) {
	var index uint64
	for {
		eval, meta, err := w.client.Evaluations().Info(id, w.query(ctx, index))
		if err != nil {
			return nil, agentError(w.client, "read evaluation "+id, err)
		}
		switch eval.Status {
		case api.EvalStatusComplete:
			return eval, nil
		case api.EvalStatusFailed, api.EvalStatusCancelled:
			return nil, fmt.Errorf("evaluation %s is %s: %s", id, eval.Status, eval.StatusDescription)
		}
		index = meta.LastIndex
	}
}

// snapshot is what is known of a job at one time.
type snapshot struct {
	allocs     []*api.AllocationListStub
	deployment *api.Deployment                  // nil when the job has none
	unplaced   map[string]*api.AllocationMetric // of groups that wait for a node
}

// look takes a snapshot, as soon as the allocations differ from those at index.
func (w *watcher) look(ctx context.Context, eval *api.Evaluation, index uint64) (snapshot, uint64, error) {
	var seen snapshot
	allocs, meta, err := w.client.Jobs().Allocations(w.job, true, w.query(ctx, index))
	if err != nil {
		return seen, 0, agentError(w.client, "read the allocations of job "+w.job, err)
	}
	seen.allocs = allocs
	if eval.DeploymentID != "" {
		if seen.deployment, _, err = w.client.Deployments().Info(eval.DeploymentID, w.query(ctx, 0)); err != nil {
			return seen, 0, agentError(w.client, "read deployment "+eval.DeploymentID, err)
		}
	}
	evals, _, err := w.client.Jobs().Evaluations(w.job, w.query(ctx, 0))
	if err != nil {
		return seen, 0, agentError(w.client, "read the evaluations of job "+w.job, err)
	}
	for _, other := range evals {
		if other.Status == api.EvalStatusBlocked {
			seen.unplaced = other.FailedTGAllocs
		}
	}
	if seen.unplaced == nil && eval.BlockedEval == "" {
		// A system job is not tried again by an evaluation that waits.
		seen.unplaced = eval.FailedTGAllocs
	}
	return seen, meta.LastIndex, nil
}
