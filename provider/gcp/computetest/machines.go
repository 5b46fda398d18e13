package computetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machine is what a test sees of one.
type Machine struct {
	// Name, Zone and ID address it.
	Name, Zone string
	ID         uint64
	// Status is Google's word: RUNNING, TERMINATED.
	Status string
	// Resource is the body of the insert.
	Resource map[string]any
	// Metadata are the metadata items.
	Metadata map[string]string
}

type machine struct {
	Machine
	statusMessage string
	nat, internal string
	serial        []byte
}

type disk struct {
	place
	id     uint64
	fields map[string]any
	user   string
}

// What the API accepts (its reference; RFC 1035 for names).
var (
	namePattern    = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey       = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue     = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	uuidPattern    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	insertedFields = []string{"name", "description", "labels", "machineType", "disks", "networkInterfaces", "scheduling",
		"metadata", "tags", "serviceAccounts"}
)

func (s *Server) insert(r *http.Request) (any, *apiError) {
	zone, id := r.PathValue("zone"), r.URL.Query().Get("requestId")
	if !uuidPattern.MatchString(id) || strings.Trim(id, "0-") == "" {
		return nil, s.problem("insert with request id %q: want a UUID", id)
	}
	if done, ok := s.requests[id]; ok { // answered before
		return s.operations[done], nil
	}
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil, s.problem("insert: %v", err)
	}
	if failure := s.checkInsert(zone, body); failure != nil {
		return nil, failure
	}
	at := place{zone, body["name"].(string)}
	if _, exists := s.machines[at]; exists {
		return nil, &apiError{Status: 409, Reason: "alreadyExists", Message: s.resource("The resource '%s' already exists", zone, "instances", at.name)}
	}
	if _, exists := s.disks[at]; exists {
		return nil, &apiError{Status: 409, Reason: "alreadyExists", Message: s.resource("The resource '%s' already exists", zone, "disks", at.name)}
	}
	m := &machine{Machine: Machine{Name: at.name, Zone: zone, ID: s.nextID(), Status: "PROVISIONING", Resource: body, Metadata: items(body)}}
	m.internal = fmt.Sprintf("10.132.0.%d", m.ID%250+2)
	s.machines[at] = m
	s.addDisk(at, body)
	op := s.begin("insert", zone, at.name, m.ID, func(ok bool) {
		if !ok {
			delete(s.machines, at)
			delete(s.disks, at)
			return
		}
		if s.machines[at] == m && m.Status == "PROVISIONING" {
			s.boot(m)
		}
	})
	s.requests[id] = op.Name
	return op, nil
}

// boot makes a machine run.
func (s *Server) boot(m *machine) {
	m.Status, m.nat = "RUNNING", fmt.Sprintf("203.0.113.%d", m.ID%250+2)
	if s.config.Backend == nil {
		return
	}
	address, err := s.config.Backend.Start(m.Machine)
	if err != nil {
		m.serial = append(m.serial, "the guest did not start: "+err.Error()+"\n"...)
		return
	}
	m.nat = address
}

// halt ends what a machine stands for.
func (s *Server) halt(m *machine) {
	if s.config.Backend != nil {
		s.config.Backend.Stop(m.Name)
	}
}

func (s *Server) addDisk(at place, body map[string]any) {
	params := body["disks"].([]any)[0].(map[string]any)["initializeParams"].(map[string]any)
	id := s.nextID()
	s.disks[at] = &disk{place: at, id: id, user: at.name, fields: map[string]any{
		"name": at.name, "id": strconv.FormatUint(id, 10), "labels": params["labels"], "description": params["description"],
		"zone": s.zoneURL(at.zone), "status": "READY", "users": []any{s.zoneURL(at.zone) + "/instances/" + at.name},
	}}
}

func items(body map[string]any) map[string]string {
	all := map[string]string{}
	metadata, _ := body["metadata"].(map[string]any)
	list, _ := metadata["items"].([]any)
	for _, item := range list {
		if item, ok := item.(map[string]any); ok {
			all[fmt.Sprint(item["key"])] = fmt.Sprint(item["value"])
		}
	}
	return all
}

// checkInsert objects to what Google would refuse, and to what would leave
// something behind.
func (s *Server) checkInsert(zone string, body map[string]any) *apiError {
	for _, field := range slices.Sorted(maps.Keys(body)) {
		if !slices.Contains(insertedFields, field) {
			return s.problem("insert: unknown field %q", field)
		}
	}
	name, _ := body["name"].(string)
	if !namePattern.MatchString(name) {
		return s.problem("insert: name %q", name)
	}
	labels, _ := body["labels"].(map[string]any)
	for key, value := range labels {
		if text, _ := value.(string); !labelKey.MatchString(key) || !labelValue.MatchString(text) {
			return s.problem("insert: label %s=%v", key, value)
		}
	}
	if text, _ := body["description"].(string); len(text) > 2048 {
		return s.problem("insert: description of %d bytes", len(text))
	}
	if kind, _ := body["machineType"].(string); !strings.Contains(kind, "zones/"+zone+"/machineTypes/") {
		return s.problem("insert: machine type %q in zone %s", kind, zone)
	}
	disks, _ := body["disks"].([]any)
	if len(disks) != 1 {
		return s.problem("insert: %d disks", len(disks))
	}
	boot, _ := disks[0].(map[string]any)
	params, _ := boot["initializeParams"].(map[string]any)
	if boot["boot"] != true || boot["autoDelete"] != true || params["diskName"] != name {
		return s.problem("insert: a boot disk that doesn't end with its machine: %v", boot)
	}
	if image, _ := params["sourceImage"].(string); !strings.Contains(image, "global/images/") {
		return s.problem("insert: image %q", image)
	} else if strings.HasSuffix(image, "/missing") {
		return &apiError{Status: 404, Reason: "notFound", Message: fmt.Sprintf("The resource '%s' was not found", image)}
	}
	if nics, _ := body["networkInterfaces"].([]any); len(nics) != 1 {
		return s.problem("insert: %d network interfaces", len(nics))
	}
	return nil
}

func (s *Server) resource(format, zone, kind, name string) string {
	return fmt.Sprintf(format, fmt.Sprintf("projects/%s/zones/%s/%s/%s", s.config.Project, zone, kind, name))
}

func (s *Server) notFound(zone, kind, name string) *apiError {
	return &apiError{Status: 404, Reason: "notFound", Message: s.resource("The resource '%s' was not found", zone, kind, name)}
}

func (s *Server) zoneURL(zone string) string {
	return "https://www.googleapis.com/compute/v1/projects/" + s.config.Project + "/zones/" + zone
}

func (s *Server) at(r *http.Request) place { return place{r.PathValue("zone"), r.PathValue("name")} }

func (s *Server) getMachine(r *http.Request) (any, *apiError) {
	m, ok := s.machines[s.at(r)]
	if !ok {
		return nil, s.notFound(r.PathValue("zone"), "instances", r.PathValue("name"))
	}
	return s.show(m), nil
}

// show is the resource as Google gives it.
func (s *Server) show(m *machine) map[string]any {
	shown := maps.Clone(m.Resource)
	maps.Copy(shown, map[string]any{
		"kind": "compute#instance", "id": strconv.FormatUint(m.ID, 10), "zone": s.zoneURL(m.Zone), "status": m.Status,
		"creationTimestamp": time.Now().Format(time.RFC3339), "selfLink": s.zoneURL(m.Zone) + "/instances/" + m.Name,
		"aFieldOfTomorrow": true,
	})
	if m.statusMessage != "" {
		shown["statusMessage"] = m.statusMessage
	}
	nic := map[string]any{"networkIP": m.internal, "name": "nic0"}
	sent, _ := m.Resource["networkInterfaces"].([]any)
	if first, _ := sent[0].(map[string]any); first["accessConfigs"] != nil && m.Status == "RUNNING" {
		nic["accessConfigs"] = []any{map[string]any{"type": "ONE_TO_ONE_NAT", "natIP": m.nat}}
	}
	shown["networkInterfaces"] = []any{nic}
	shown["disks"] = []any{map[string]any{"boot": true, "autoDelete": true, "source": s.zoneURL(m.Zone) + "/disks/" + m.Name}}
	return shown
}

func (s *Server) deleteMachine(r *http.Request) (any, *apiError) {
	at, id := s.at(r), r.URL.Query().Get("requestId")
	if !uuidPattern.MatchString(id) {
		return nil, s.problem("delete with request id %q: want a UUID", id)
	}
	if done, ok := s.requests[id]; ok {
		return s.operations[done], nil
	}
	m, ok := s.machines[at]
	if !ok {
		return nil, s.notFound(at.zone, "instances", at.name)
	}
	m.Status = "STOPPING"
	op := s.begin("delete", at.zone, at.name, m.ID, func(ok bool) {
		if !ok {
			return
		}
		s.halt(m)
		delete(s.machines, at)
		delete(s.disks, at)
	})
	s.requests[id] = op.Name
	return op, nil
}

func (s *Server) stopMachine(r *http.Request) (any, *apiError) {
	at := s.at(r)
	m, ok := s.machines[at]
	if !ok {
		return nil, s.notFound(at.zone, "instances", at.name)
	}
	m.Status = "STOPPING"
	return s.begin("stop", at.zone, at.name, m.ID, func(ok bool) {
		if ok && s.machines[at] == m {
			s.halt(m)
			m.Status = "TERMINATED"
		}
	}), nil
}

func (s *Server) serial(r *http.Request) (any, *apiError) {
	m, ok := s.machines[s.at(r)]
	if !ok {
		return nil, s.notFound(r.PathValue("zone"), "instances", r.PathValue("name"))
	}
	if r.URL.Query().Get("port") != "1" {
		return nil, s.problem("serial port %q", r.URL.Query().Get("port"))
	}
	output := m.serial
	if backend, ok := s.config.Backend.(interface{ Output(name string) []byte }); ok {
		output = append(slices.Clone(output), backend.Output(m.Name)...)
	}
	start, _ := strconv.Atoi(r.URL.Query().Get("start"))
	if start < 0 {
		start = max(len(output)+start, 0)
	}
	start = min(start, len(output))
	return map[string]any{
		"contents": string(output[start:]), "start": strconv.Itoa(start), "next": strconv.Itoa(len(output)),
	}, nil
}
