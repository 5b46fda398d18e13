package computetest

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Fault is a failure on order.
type Fault struct {
	// Call is which call fails: "instances.insert", or "" for any.
	Call string
	// Zone restricts it to one zone; empty is any.
	Zone string
	// Times is how often; 0 is always.
	Times int
	// After lets the call have its effect first.
	After bool
	// Status, Reason and Message are the answer.
	Status          int
	Reason, Message string
	// Stall never answers.
	Stall bool
	// Truncate cuts the answer off in the middle of the JSON.
	Truncate bool
	// Cut closes the connection without an answer.
	Cut bool
	// Operation lets the call succeed and its operation fail.
	Operation *OperationError

	done int
}

// Fail orders a failure. The first that fits a call wins.
func (s *Server) Fail(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &fault)
}

// Heal ends all failures.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

func (s *Server) fault(call string, r *http.Request) *Fault {
	for _, f := range s.faults {
		if (f.Call == "" || f.Call == call) && (f.Zone == "" || f.Zone == r.PathValue("zone")) && (f.Times == 0 || f.done < f.Times) {
			f.done++
			return f
		}
	}
	return nil
}

// fail answers as a fault says.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, f *Fault, answer any) {
	switch {
	case f.Stall:
		select {
		case <-r.Context().Done():
		case <-s.stalled:
		}
	case f.Cut:
		panic(http.ErrAbortHandler)
	case f.Truncate:
		s.mu.Lock()
		body, _ := json.Marshal(answer)
		s.mu.Unlock()
		if len(body) < 10 {
			body = []byte(`{"kind":"compute#operation"}`)
		}
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		_, _ = w.Write(body[:len(body)/2])
	default:
		(&apiError{Status: f.Status, Reason: f.Reason, Message: f.Message}).write(w)
	}
}

// apiError is Google's form of an error.
type apiError struct {
	Status          int
	Reason, Message string
}

func (e *apiError) write(w http.ResponseWriter) {
	inner := map[string]any{
		"code": e.Status, "message": e.Message,
		"errors": []any{map[string]any{"message": e.Message, "domain": "global", "reason": e.Reason}},
	}
	if e.Reason != "" && strings.ToUpper(e.Reason) == e.Reason { // the newer form
		inner["errors"] = []any{map[string]any{"message": e.Message, "domain": "global", "reason": "forbidden"}}
		inner["details"] = []any{map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": e.Reason, "domain": "googleapis.com"}}
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": inner})
}
