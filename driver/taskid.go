package driver

import (
	"fmt"
	"strings"
)

// slot is a place in a job that one instance fills: a task of an allocation.
// Its invocations come and go, each with a task id of its own.
type slot struct {
	alloc string
	task  string
}

// parseTaskID takes a task id apart: <allocation>/<task>/<invocation>.
func parseTaskID(id string) (slot, error) {
	alloc, rest, _ := strings.Cut(id, "/")
	last := strings.LastIndexByte(rest, '/')
	if alloc == "" || last < 1 {
		return slot{}, fmt.Errorf("task id %q: want <allocation>/<task>/<invocation>", id)
	}
	return slot{alloc: alloc, task: rest[:last]}, nil
}
