package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Event is something that happened to one allocation.
type Event struct {
	At time.Time `json:"at"`
	// Alloc is the id of the allocation, Name its name ("proxies.proxy[0]").
	Alloc string `json:"alloc"`
	Name  string `json:"name"`
	// Node is the name of the Nomad node.
	Node string `json:"node"`
	// Task is empty for what happens to the whole allocation.
	Task string `json:"task,omitempty"`
	// Message says what happened.
	Message string `json:"message"`
}

// Outcome is how a submission ended.
type Outcome string

// The outcomes.
const (
	// Healthy: all that the job wants is running and healthy.
	Healthy Outcome = "healthy"
	// Failed: the deployment or an allocation failed.
	Failed Outcome = "failed"
	// Unplaced: what was placed is healthy, and some found no node. Nomad goes
	// on trying.
	Unplaced Outcome = "unplaced"
	// AwaitsPromotion: the canaries are healthy and a person must promote them.
	AwaitsPromotion Outcome = "awaits promotion"
)

// Report is how a submission ended, and why.
type Report struct {
	Outcome Outcome `json:"outcome"`
	// Message explains it to a person.
	Message string `json:"message"`
	// Healthy and Desired count allocations, as far as the deployment went.
	Healthy int `json:"healthy"`
	Desired int `json:"desired"`
	// Deployment is its id; empty for jobs without.
	Deployment string `json:"deployment,omitempty"`
	// Refusals are of Unplaced and Failed.
	Refusals []Refusal `json:"refusals,omitempty"`
}

// placementPatience is how long allocations may wait for a node while nothing
// else is under way: an allocation that stops may be about to make room.
const placementPatience = 5 * time.Second

// quiet are the task events that tell a person nothing.
var quiet = map[string]bool{api.TaskReceived: true, api.TaskSetup: true}

// progress follows one version of a job. It is pure.
type progress struct {
	job  *api.Job
	eval *api.Evaluation

	told   map[string]int64 // the time of the last event that was told, by allocation and task
	states map[string]string
	stuck  time.Time // since when nothing but a placement is awaited
}

func newProgress(job *api.Job, eval *api.Evaluation) *progress {
	return &progress{job: job, eval: eval, told: make(map[string]int64), states: make(map[string]string)}
}

// mine is true for the allocations of the version that was submitted.
func (p *progress) mine(alloc *api.AllocationListStub) bool {
	return alloc.JobVersion == *p.job.Version
}

// events are what happened since the snapshot before, in order.
func (p *progress) events(seen snapshot) []Event {
	var events []Event
	for _, alloc := range seen.allocs {
		if !p.mine(alloc) {
			continue
		}
		event := Event{Alloc: alloc.ID, Name: alloc.Name, Node: alloc.NodeName}
		last := time.Unix(0, alloc.ModifyTime)
		for task, state := range alloc.TaskStates {
			for _, happened := range state.Events {
				key := alloc.ID + "/" + task
				if happened.Time <= p.told[key] || happened.Time < p.eval.CreateTime {
					continue
				}
				p.told[key] = happened.Time
				if quiet[happened.Type] {
					continue
				}
				event := event
				event.At, event.Task, event.Message = time.Unix(0, happened.Time), task, message(happened)
				events = append(events, event)
			}
		}
		if state := stateOf(alloc); state != p.states[alloc.ID] {
			p.states[alloc.ID] = state
			if state != "" {
				event.At, event.Message = last, state
				events = append(events, event)
			}
		}
	}
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
	return events
}

func message(event *api.TaskEvent) string {
	text := cmp.Or(event.DisplayMessage, event.Message, event.DriverMessage)
	if event.Type == api.TaskDriverMessage && text != "" {
		return text
	}
	if text == "" {
		return event.Type
	}
	return event.Type + ": " + text
}

// stateOf is a state of the whole allocation that is worth a line.
func stateOf(alloc *api.AllocationListStub) string {
	status := alloc.DeploymentStatus
	switch {
	case alloc.ClientStatus == api.AllocClientStatusFailed:
		return "failed: " + cmp.Or(alloc.ClientDescription, "see its events")
	case alloc.ClientStatus == api.AllocClientStatusLost:
		return "lost with its node"
	case status != nil && status.Healthy != nil && *status.Healthy:
		return "healthy"
	case status != nil && status.Healthy != nil:
		return "unhealthy"
	default:
		return ""
	}
}

// outcome is how the submission ended; done is false while it goes on.
func (p *progress) outcome(seen snapshot, now time.Time) (report Report, done bool) {
	if seen.deployment != nil {
		report, done = p.deployed(seen.deployment)
	} else {
		report, done = p.settled(seen.allocs, len(seen.unplaced) > 0)
	}
	if done || len(seen.unplaced) == 0 || p.underWay(seen) {
		p.stuck = time.Time{}
		return report, done
	}
	if p.stuck.IsZero() {
		p.stuck = now
	}
	if now.Sub(p.stuck) < placementPatience {
		return report, false
	}
	report.Outcome = Unplaced
	report.Message = "no node takes the others; the job stays submitted, and Nomad places them as soon as one does"
	return report, true
}

// deployed is the outcome by a deployment.
func (p *progress) deployed(deployment *api.Deployment) (Report, bool) {
	report := Report{Deployment: deployment.ID, Message: deployment.StatusDescription}
	promotable := false
	for _, group := range deployment.TaskGroups {
		report.Healthy += group.HealthyAllocs
		report.Desired += group.DesiredTotal
		if group.DesiredCanaries > 0 && !group.Promoted {
			promotable = group.HealthyAllocs >= group.DesiredCanaries
		}
	}
	switch deployment.Status {
	case api.DeploymentStatusSuccessful:
		report.Outcome = Healthy
		return report, true
	case api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
		report.Outcome = Failed
		return report, true
	}
	if promotable && !p.autoPromotes() {
		report.Outcome = AwaitsPromotion
		report.Message = fmt.Sprintf("the canaries are healthy: nomad deployment promote %s", deployment.ID)
		return report, true
	}
	return report, false
}

func (p *progress) autoPromotes() bool {
	for _, group := range p.job.TaskGroups {
		if update := group.Update; update != nil && update.AutoPromote != nil && *update.AutoPromote {
			return true
		}
	}
	return false
}

// settled is the outcome of a job without a deployment: a batch or system job,
// or one in which nothing changed.
func (p *progress) settled(allocs []*api.AllocationListStub, unplaced bool) (Report, bool) {
	ends := *p.job.Type == api.JobTypeBatch || *p.job.Type == api.JobTypeSysbatch
	var report Report
	for _, alloc := range allocs {
		if !p.mine(alloc) || alloc.DesiredStatus != api.AllocDesiredStatusRun || alloc.NextAllocation != "" {
			continue
		}
		report.Desired++
		switch alloc.ClientStatus {
		case api.AllocClientStatusFailed, api.AllocClientStatusLost:
			report.Outcome, report.Message = Failed, fmt.Sprintf("allocation %s %s", alloc.ID, stateOf(alloc))
		case api.AllocClientStatusComplete:
			report.Healthy++
		case api.AllocClientStatusRunning:
			if !ends {
				report.Healthy++
			}
		}
	}
	if report.Outcome == Failed {
		return report, true
	}
	if unplaced || report.Healthy < report.Desired {
		return report, false
	}
	if *p.job.Type == api.JobTypeService && report.Desired < p.wanted() {
		return report, false
	}
	report.Outcome = Healthy
	return report, true
}

// wanted is how many allocations a service job is to have.
func (p *progress) wanted() int {
	total := 0
	for _, group := range p.job.TaskGroups {
		total += *group.Count
	}
	return total
}

// underWay is true while an allocation of the version may become healthy or
// fail.
func (p *progress) underWay(seen snapshot) bool {
	for _, alloc := range seen.allocs {
		if !p.mine(alloc) || alloc.DesiredStatus != api.AllocDesiredStatusRun || alloc.NextAllocation != "" {
			continue
		}
		status := alloc.DeploymentStatus
		undecided := seen.deployment != nil && (status == nil || status.Healthy == nil)
		if alloc.ClientStatus == api.AllocClientStatusPending || alloc.ClientStatus == api.AllocClientStatusRunning && undecided {
			return true
		}
	}
	return false
}
