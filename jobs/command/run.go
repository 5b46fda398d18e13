package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/jobs"
)

func runCommand() *cobra.Command {
	var f flags
	var detach bool
	command := &cobra.Command{
		Use:   "run <jobspec>",
		Short: "Submit a jobspec and follow it until its proxies work",
		Long: `Submit a jobspec and follow its deployment: what each proxy is doing, line by
line, until all of them are healthy or the deployment has failed. A proxy is
healthy when a page was fetched through it.

Ctrl-C stops following; the job goes on. Canaries that a person must promote end
the following with success, and the command to promote them.`,
		Example: `  egress job run process --var count=10
  egress job run ./my-fleet.nomad.hcl --detach
  egress job run process --json | jq -r 'select(.outcome) | .outcome'`,
		RunE: func(command *cobra.Command, args []string) error {
			client, job, err := f.load(command, args[0])
			if err != nil {
				return err
			}
			return run(command.Context(), client, job, detach, reporter(command.OutOrStdout(), f.asJSON))
		},
	}
	f.add(command, "print a JSON object for each event, and one with the outcome")
	command.Flags().BoolVarP(&detach, "detach", "d", false, "submit, print the evaluation, and don't follow")
	return command
}

func run(ctx context.Context, client *api.Client, job *api.Job, detach bool, r report) error {
	evaluation, err := jobs.Submit(ctx, client, job)
	if err != nil {
		return err
	}
	if err := r.submitted(*job.ID, evaluation); err != nil || detach {
		return err
	}
	began := time.Now()
	result, err := jobs.Follow(ctx, client, job, evaluation, r.event)
	if ctx.Err() != nil {
		return exit{fmt.Errorf("no longer following; the job goes on: nomad job status %s", *job.ID), codeInterrupted}
	}
	if err != nil {
		return err
	}
	if err := r.ended(result, time.Since(began)); err != nil {
		return err
	}
	switch result.Outcome {
	case jobs.Failed:
		return exit{errors.New("the deployment failed: " + result.Message), codeFailed}
	case jobs.Unplaced:
		return exit{errors.New("not all were placed: " + result.Message), codeUnplaced}
	default:
		return nil
	}
}

// report prints what happens.
type report struct {
	submitted func(job, evaluation string) error
	event     func(jobs.Event)
	ended     func(result jobs.Report, took time.Duration) error
}

func reporter(w io.Writer, asJSON bool) report {
	if asJSON {
		encoder := json.NewEncoder(w)
		return report{
			submitted: func(job, evaluation string) error {
				return encoder.Encode(map[string]string{"job": job, "evaluation": evaluation})
			},
			event: func(event jobs.Event) { _ = encoder.Encode(event) }, // The end is told of a broken pipe too.
			ended: func(result jobs.Report, _ time.Duration) error { return encoder.Encode(result) },
		}
	}
	began := time.Now()
	return report{
		submitted: func(job, evaluation string) error {
			_, err := fmt.Fprintf(w, "job %s is submitted, evaluation %s\n", job, evaluation)
			return err
		},
		event: func(event jobs.Event) {
			name := event.Name
			if event.Task != "" {
				name += "/" + event.Task
			}
			passed := max(0, event.At.Sub(began))
			fmt.Fprintf(w, "%6.1fs  %.8s  %s  %s: %s\n", passed.Seconds(), event.Alloc, event.Node, name, event.Message)
		},
		ended: func(result jobs.Report, took time.Duration) error {
			if err := writeRefusals(w, result.Refusals); err != nil {
				return err
			}
			_, err := fmt.Fprintf(w, "%s: %d of %d healthy after %v. %s\n",
				result.Outcome, result.Healthy, result.Desired, took.Round(100*time.Millisecond), result.Message)
			return err
		},
	}
}
