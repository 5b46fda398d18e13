package computetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Machines gives what there is.
func (s *Server) Machines() []Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Machine, 0, len(s.machines))
	for _, m := range s.machines {
		all = append(all, m.Machine)
	}
	return all
}

// Count counts the machines and disks of a name, in all zones.
func (s *Server) Count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for at := range s.machines {
		if at.name == name {
			n++
		}
	}
	for at := range s.disks {
		if at.name == name {
			n++
		}
	}
	return n
}

// change calls fn for the machine of a name.
func (s *Server) change(name string, fn func(m *machine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, m := range s.machines {
		if at.name == name {
			fn(m)
		}
	}
}

// SetStatus gives a machine any status.
func (s *Server) SetStatus(name, status string) {
	s.change(name, func(m *machine) { m.Status = status })
}

// SetAddress changes the external address.
func (s *Server) SetAddress(name, address string) {
	s.change(name, func(m *machine) { m.nat = address })
}

// Print writes to the serial port.
func (s *Server) Print(name, text string) {
	s.change(name, func(m *machine) { m.serial = append(m.serial, text...) })
}

// SetLabel changes a label, as somebody in the console would.
func (s *Server) SetLabel(name, key, value string) {
	s.change(name, func(m *machine) { m.Resource["labels"].(map[string]any)[key] = value })
}

// LoseMachine leaves the disk of a machine alone.
func (s *Server) LoseMachine(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, m := range s.machines {
		if at.name == name {
			s.halt(m)
			delete(s.machines, at)
			s.disks[at].fields["users"] = nil
		}
	}
}

func (s *Server) getDisk(r *http.Request) (any, *apiError) {
	d, ok := s.disks[s.at(r)]
	if !ok {
		return nil, s.notFound(r.PathValue("zone"), "disks", r.PathValue("name"))
	}
	return d.fields, nil
}

func (s *Server) deleteDisk(r *http.Request) (any, *apiError) {
	at := s.at(r)
	d, ok := s.disks[at]
	if !ok {
		return nil, s.notFound(at.zone, "disks", at.name)
	}
	if _, used := s.machines[at]; used {
		return nil, &apiError{Status: 400, Reason: "resourceInUseByAnotherResource", Message: s.resource("The disk resource '%s' is already being used", at.zone, "disks", at.name)}
	}
	return s.begin("delete", at.zone, at.name, d.id, func(bool) { delete(s.disks, at) }), nil
}

func (s *Server) listMachines(r *http.Request) (any, *apiError) {
	return s.list(r, "instances", func(match func(map[string]string) bool) (found []item) {
		for at, m := range s.machines {
			if match(fields(at.name, m.Resource["labels"])) {
				found = append(found, item{at, s.show(m)})
			}
		}
		return found
	})
}

func (s *Server) listDisks(r *http.Request) (any, *apiError) {
	return s.list(r, "disks", func(match func(map[string]string) bool) (found []item) {
		for at, d := range s.disks {
			if match(fields(at.name, d.fields["labels"])) {
				found = append(found, item{at, d.fields})
			}
		}
		return found
	})
}

type item struct {
	place
	shown any
}

// list is an aggregated list: pages over all zones, with a warning for those
// that are empty and for those that can't be asked.
func (s *Server) list(r *http.Request, kind string, find func(match func(map[string]string) bool) []item) (any, *apiError) {
	match, failure := s.filter(r)
	if failure != nil {
		return nil, failure
	}
	all := slices.DeleteFunc(find(match), func(i item) bool { return slices.Contains(s.silent, i.zone) })
	slices.SortFunc(all, func(a, b item) int { return strings.Compare(a.zone+a.name, b.zone+b.name) })
	size := s.config.PageSize
	if asked, err := strconv.Atoi(r.URL.Query().Get("maxResults")); err == nil {
		size = min(size, asked)
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("pageToken"))
	from = min(from, len(all))
	page := all[from:min(from+size, len(all))]
	scopes := map[string]map[string]any{}
	for _, zone := range s.config.Zones {
		code := "NO_RESULTS_ON_PAGE"
		if slices.Contains(s.silent, zone) {
			code = "UNREACHABLE"
		}
		scopes["zones/"+zone] = map[string]any{"warning": map[string]any{"code": code, "message": "There are no results for scope 'zones/" + zone + "' on this page."}}
	}
	for _, i := range page {
		scope := scopes["zones/"+i.zone]
		delete(scope, "warning")
		listed, _ := scope[kind].([]any)
		scope[kind] = append(listed, i.shown)
	}
	answer := map[string]any{"items": scopes}
	if from+size < len(all) {
		answer["nextPageToken"] = strconv.Itoa(from + size)
	} else {
		for _, zone := range s.silent {
			unreachables, _ := answer["unreachables"].([]string)
			answer["unreachables"] = append(unreachables, "zones/"+zone)
		}
	}
	return answer, nil
}

func fields(name string, labels any) map[string]string {
	all := map[string]string{"name": name}
	values, _ := labels.(map[string]any)
	for key, value := range values {
		all["labels."+key] = fmt.Sprint(value)
	}
	return all
}

// filter understands terms "field=value" that are joined by AND.
func (s *Server) filter(r *http.Request) (func(fields map[string]string) bool, *apiError) {
	text := r.URL.Query().Get("filter")
	if text == "" {
		return nil, s.problem("a list of a whole project without a filter")
	}
	wanted := map[string]string{}
	for _, term := range strings.Split(text, " AND ") {
		field, value, ok := strings.Cut(term, "=")
		if !ok || strings.ContainsAny(value, " ()\"'") {
			return nil, s.problem("filter %q", text)
		}
		wanted[field] = value
	}
	return func(fields map[string]string) bool {
		for field, value := range wanted {
			if fields[field] != value {
				return false
			}
		}
		return true
	}, nil
}

func (s *Server) getRegion(r *http.Request) (any, *apiError) {
	name := r.PathValue("region")
	var zones []string
	used := map[string]float64{}
	for _, zone := range s.config.Zones {
		if strings.HasPrefix(zone, name+"-") {
			zones = append(zones, s.zoneURL(zone))
		}
	}
	if len(zones) == 0 {
		return nil, &apiError{Status: 404, Reason: "notFound", Message: fmt.Sprintf("The resource 'projects/%s/regions/%s' was not found", s.config.Project, name)}
	}
	for at := range s.machines {
		if strings.HasPrefix(at.zone, name+"-") {
			used["INSTANCES"]++
			used["IN_USE_ADDRESSES"]++
			used["CPUS"] += 2
		}
	}
	var quotas []any
	for _, metric := range []string{"CPUS", "INSTANCES", "IN_USE_ADDRESSES", "SSD_TOTAL_GB"} {
		limit, ok := s.config.Limits[metric]
		if !ok {
			limit = 1000
		}
		quotas = append(quotas, map[string]any{"metric": metric, "limit": limit, "usage": used[metric]})
	}
	return map[string]any{"name": name, "status": "UP", "zones": zones, "quotas": quotas}, nil
}

func (s *Server) testPermissions(r *http.Request) (any, *apiError) {
	if r.PathValue("call") != s.config.Project+":testIamPermissions" {
		return nil, s.problem("call %q", r.PathValue("call"))
	}
	var body struct{ Permissions []string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil, s.problem("permissions: %v", err)
	}
	granted := slices.DeleteFunc(body.Permissions, func(one string) bool { return slices.Contains(s.denied, one) })
	return map[string]any{"permissions": granted}, nil
}
