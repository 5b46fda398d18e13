package jobs

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

// Plan is what a submission would do.
type Plan struct {
	// Diff is what changes in the job.
	Diff *api.JobDiff `json:"diff,omitempty"`
	// Updates are what happens to each group's allocations.
	Updates map[string]*api.DesiredUpdates `json:"updates,omitempty"`
	// Refusals are the placements that would fail.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Warnings are Nomad's.
	Warnings string `json:"warnings,omitempty"`
}

// NewPlan asks the scheduler what a submission of job would do, and the nodes
// why they refuse what would not be placed.
func NewPlan(ctx context.Context, client *api.Client, job *api.Job) (Plan, error) {
	response, _, err := client.Jobs().Plan(job, true, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return Plan{}, agentError(client, "plan job "+*job.ID, err)
	}
	plan := Plan{Diff: response.Diff, Warnings: response.Warnings}
	if response.Annotations != nil {
		plan.Updates = response.Annotations.DesiredTGUpdates
	}
	plan.Refusals, err = Explain(ctx, client, job, response.FailedTGAllocs)
	return plan, err
}
