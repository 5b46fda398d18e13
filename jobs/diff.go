package jobs

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// marks say what happens to a line of a diff.
var marks = map[string]string{"Added": "+", "Deleted": "-", "Edited": "~"}

// WriteDiff prints what a submission would change, one line for each value;
// what stays is left out.
func WriteDiff(w io.Writer, diff *api.JobDiff) error {
	d := &differ{}
	if diff == nil || diff.Type == "None" {
		d.line(0, "", "no change of the job")
		return d.write(w)
	}
	d.line(0, marks[diff.Type], "job %q", diff.ID)
	d.fields(1, diff.Fields)
	d.objects(1, diff.Objects)
	for _, group := range diff.TaskGroups {
		if group.Type == "None" {
			continue
		}
		d.line(1, marks[group.Type], "group %q", group.Name)
		d.fields(2, group.Fields)
		d.objects(2, group.Objects)
		for _, task := range group.Tasks {
			if task.Type == "None" {
				continue
			}
			d.line(2, marks[task.Type], "task %q%s", task.Name, annotations(task.Annotations))
			d.fields(3, task.Fields)
			d.objects(3, task.Objects)
		}
	}
	return d.write(w)
}

// WriteUpdates prints how many allocations of each group a submission would
// start, change and stop.
func WriteUpdates(w io.Writer, updates map[string]*api.DesiredUpdates) error {
	d := &differ{}
	for _, group := range slices.Sorted(maps.Keys(updates)) {
		u := updates[group]
		var parts []string
		for _, part := range []struct {
			count uint64
			words string
		}{
			{u.Place, "to start"},
			{u.Canary, "to start as canaries"},
			{u.DestructiveUpdate, "to replace"},
			{u.InPlaceUpdate, "to update in place"},
			{u.Migrate, "to move"},
			{u.Stop, "to stop"},
			{u.Preemptions, "to preempt"},
			{u.Ignore, "untouched"},
		} {
			if part.count > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", part.count, part.words))
			}
		}
		if len(parts) == 0 {
			parts = []string{"nothing to do"}
		}
		d.line(0, "", "group %q: %s", group, strings.Join(parts, ", "))
	}
	return d.write(w)
}

// differ collects lines.
type differ struct{ text strings.Builder }

func (d *differ) write(w io.Writer) error {
	_, err := io.WriteString(w, d.text.String())
	return err
}

func (d *differ) line(depth int, mark, format string, args ...any) {
	if mark == "" {
		mark = " "
	}
	fmt.Fprintf(&d.text, "%s%s %s\n", strings.Repeat("  ", depth), mark, fmt.Sprintf(format, args...))
}

// durations are fields that Nomad shows as a number of nanoseconds.
var durations = map[string]bool{
	"Delay": true, "HealthyDeadline": true, "Interval": true, "KillTimeout": true, "MaxClientDisconnect": true,
	"MaxDelay": true, "MinHealthyTime": true, "ProgressDeadline": true, "ShutdownDelay": true, "Stagger": true,
	"StopAfterClientDisconnect": true, "Timeout": true,
}

// unset are values that say no more than that nothing was set.
var unset = map[string]bool{"": true, "0": true, "false": true}

func (d *differ) fields(depth int, fields []*api.FieldDiff) {
	for _, field := range fields {
		why := annotations(field.Annotations)
		before, after := readable(field.Name, field.Old), readable(field.Name, field.New)
		switch {
		case field.Type == "Added" && !unset[field.New]:
			d.line(depth, "+", "%s: %s%s", field.Name, after, why)
		case field.Type == "Deleted" && !unset[field.Old]:
			d.line(depth, "-", "%s: %s%s", field.Name, before, why)
		case field.Type == "Edited":
			d.line(depth, "~", "%s: %s => %s%s", field.Name, before, after, why)
		}
	}
}

// readable is a value as a person writes it.
func readable(name, value string) string {
	if number, err := strconv.ParseInt(value, 10, 64); err == nil && durations[name] {
		return time.Duration(number).String()
	}
	return strconv.Quote(value)
}

func (d *differ) objects(depth int, objects []*api.ObjectDiff) {
	for _, object := range objects {
		if object.Type == "None" {
			continue
		}
		if text, ok := constraint(object); ok {
			d.line(depth, marks[object.Type], "%s", text)
			continue
		}
		d.line(depth, marks[object.Type], "%s", object.Name)
		d.fields(depth+1, object.Fields)
		d.objects(depth+1, object.Objects)
	}
}

// constraint is one on one line, when it came or went as a whole.
func constraint(object *api.ObjectDiff) (text string, ok bool) {
	if object.Name != "Constraint" || object.Type == "Edited" {
		return "", false
	}
	values := make(map[string]string)
	for _, field := range object.Fields {
		values[field.Name] = field.New + field.Old // One of them is empty.
	}
	return strings.Join(strings.Fields("Constraint: "+values["LTarget"]+" "+values["Operand"]+" "+values["RTarget"]), " "), true
}

func annotations(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}
