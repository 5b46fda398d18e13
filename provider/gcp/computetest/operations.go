package computetest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// operation is one that runs or has ended. Its fields are Google's.
type operation struct {
	Name         string          `json:"name"`
	ID           string          `json:"id"`
	Type         string          `json:"operationType"`
	Status       string          `json:"status"`
	Zone         string          `json:"zone"`
	TargetID     string          `json:"targetId"`
	TargetLink   string          `json:"targetLink"`
	InsertTime   string          `json:"insertTime"`
	User         string          `json:"user,omitempty"`
	HTTPStatus   int             `json:"httpErrorStatusCode,omitempty"`
	HTTPMessage  string          `json:"httpErrorMessage,omitempty"`
	Error        *operationError `json:"error,omitempty"`
	zone, target string
	due          time.Time
	failure      *OperationError
	finish       func(ok bool)
}

type operationError struct {
	Errors []OperationError `json:"errors"`
}

// OperationError is how an operation ends that fails.
type OperationError struct {
	// Code is Google's: QUOTA_EXCEEDED, ZONE_RESOURCE_POOL_EXHAUSTED.
	Code string `json:"code"`
	// Message is Google's text.
	Message string `json:"message"`
	// Status is the HTTP status of the operation's own; 0 is 403.
	Status int `json:"-"`
}

// begin starts an operation; finish is called at its end, with the lock held.
func (s *Server) begin(kind, zone, target string, id uint64, finish func(ok bool)) *operation {
	number := s.nextID()
	now := time.Now()
	op := &operation{
		Name: fmt.Sprintf("operation-%d", number), ID: strconv.FormatUint(number, 10), Type: kind, Status: "RUNNING",
		Zone: s.zoneURL(zone), TargetID: strconv.FormatUint(id, 10), TargetLink: s.zoneURL(zone) + "/instances/" + target,
		InsertTime: now.UTC().Format(time.RFC3339Nano), zone: zone, target: target, due: now.Add(s.config.Delay), finish: finish,
	}
	s.operations[op.Name] = op
	return op
}

// settle ends the operations that are due.
func (s *Server) settle(now time.Time) {
	for _, op := range s.operations {
		if op.Status == "DONE" || now.Before(op.due) {
			continue
		}
		op.Status = "DONE"
		if op.failure != nil {
			op.HTTPStatus, op.HTTPMessage = op.failure.Status, "FORBIDDEN"
			if op.HTTPStatus == 0 {
				op.HTTPStatus = http.StatusForbidden
			}
			op.Error = &operationError{[]OperationError{*op.failure}}
		}
		if op.finish != nil {
			op.finish(op.failure == nil)
		}
	}
}

// spoil makes a begun operation fail in the end.
func (s *Server) spoil(answer any, failure *OperationError) {
	if op, ok := answer.(*operation); ok && op.Status != "DONE" {
		op.failure = failure
	}
}

func (s *Server) waitOperation(r *http.Request) (any, *apiError) {
	op, ok := s.operations[r.PathValue("name")]
	if !ok || op.zone != r.PathValue("zone") {
		return nil, s.notFound(r.PathValue("zone"), "operations", r.PathValue("name"))
	}
	return op, nil
}

func (s *Server) listOperations(r *http.Request) (any, *apiError) {
	match, failure := s.filter(r)
	if failure != nil {
		return nil, failure
	}
	found := []*operation{}
	for _, op := range s.operations {
		if op.zone == r.PathValue("zone") && match(map[string]string{"targetId": op.TargetID, "operationType": op.Type}) {
			found = append(found, op)
		}
	}
	return map[string]any{"items": found}, nil
}

// end makes a machine end as if by itself: by Google or by somebody.
func (s *Server) end(name, kind, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, m := range s.machines {
		if at.name != name {
			continue
		}
		op := s.begin(kind, at.zone, name, m.ID, nil)
		op.Status, op.User = "DONE", "somebody@example.com"
		if strings.HasPrefix(kind, "compute.") {
			op.User = "system"
		}
		s.halt(m)
		if status == "" {
			delete(s.machines, at)
			delete(s.disks, at)
			continue
		}
		m.Status = status
	}
}

// Preempt takes a spot machine back; it is stopped, or deleted.
func (s *Server) Preempt(name string, deleted bool) {
	if deleted {
		s.end(name, "compute.instances.preempted", "")
		return
	}
	s.end(name, "compute.instances.preempted", "TERMINATED")
}

// Remove deletes a machine as somebody in the console would.
func (s *Server) Remove(name string) { s.end(name, "delete", "") }

// Shutdown ends a machine from within.
func (s *Server) Shutdown(name string) { s.end(name, "compute.instances.guestTerminate", "TERMINATED") }
