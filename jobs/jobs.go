// Package jobs holds the jobspecs that come with egress, and renders and
// submits them through a Nomad agent.
package jobs

import (
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

//go:embed *.nomad.hcl
var specs embed.FS

const extension = ".nomad.hcl"

// Names are the names of the embedded jobspecs, sorted.
func Names() []string {
	entries, _ := specs.ReadDir(".") // Embedded: it can't fail.
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), extension))
	}
	slices.Sort(names)
	return names
}

// Source is the text of the embedded jobspec name.
func Source(name string) (string, error) {
	text, err := specs.ReadFile(name + extension)
	if err != nil {
		return "", fmt.Errorf("no jobspec %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return string(text), nil
}

// Parse renders a jobspec with its variables, which are given as on the command
// line: a string as it is, everything else as HCL. The agent does the parsing,
// so that it is its own version that counts.
func Parse(ctx context.Context, client *api.Client, source string, variables map[string]string) (*api.Job, error) {
	file, err := variablesFile(source, variables)
	if err != nil {
		return nil, err
	}
	// The client's method for this takes no context.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	job, err := client.Jobs().ParseHCLOpts(&api.JobsParseRequest{
		JobHCL:       source,
		Variables:    file,
		Canonicalize: true,
	})
	if err != nil {
		return nil, agentError(client, "parse the jobspec", err)
	}
	return job, nil
}

// Load parses the embedded jobspec name.
func Load(ctx context.Context, client *api.Client, name string, variables map[string]string) (*api.Job, error) {
	source, err := Source(name)
	if err != nil {
		return nil, err
	}
	job, err := Parse(ctx, client, source, variables)
	if err != nil {
		return nil, fmt.Errorf("jobspec %s: %w", name, err)
	}
	return job, nil
}

// Submit registers a job and returns the id of its evaluation, which is empty
// for a periodic or parameterized job.
func Submit(ctx context.Context, client *api.Client, job *api.Job) (evaluation string, err error) {
	response, _, err := client.Jobs().Register(job, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return "", agentError(client, "submit job "+*job.ID, err)
	}
	return response.EvalID, nil
}

// Summary is the first sentence of a jobspec's leading comment.
func Summary(source string) string {
	var words []string
	for line := range strings.Lines(source) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !ok || strings.TrimSpace(text) == "" {
			break
		}
		words = append(words, strings.TrimSpace(text))
	}
	sentence, _, _ := strings.Cut(strings.Join(words, " "), ". ")
	return strings.TrimSuffix(sentence, ".")
}
