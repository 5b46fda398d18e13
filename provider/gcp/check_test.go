package gcp

import (
	"strings"
	"testing"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/gcp/computetest"
)

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		config  computetest.Config
		prepare func(w *world)
		options map[string]any
		reason  provider.Reason
		says    string
	}{
		"no credentials": {prepare: func(w *world) {
			w.Fail(computetest.Fault{Call: "token", Status: 400, Reason: "invalid_grant", Message: "account deleted"})
		}, reason: provider.Unauthorized, says: "refuses the credentials"},
		"401": {prepare: func(w *world) {
			w.Fail(computetest.Fault{Status: 401, Reason: "authError", Message: "Invalid Credentials"})
		}, reason: provider.Unauthorized, says: "Invalid Credentials"},
		"disabled API": {prepare: func(w *world) {
			w.Fail(computetest.Fault{Call: "regions.get", Status: 403, Reason: "SERVICE_DISABLED", Message: "Enable it by visiting https://console"})
		}, reason: provider.Forbidden, says: "https://console"},
		"permission":     {prepare: func(w *world) { w.Deny("compute.instances.create") }, reason: provider.Forbidden, says: "compute.instances.create"},
		"quota":          {config: computetest.Config{Limits: map[string]float64{"IN_USE_ADDRESSES": 0}}, reason: provider.QuotaExhausted, says: "IN_USE_ADDRESSES"},
		"unknown region": {options: map[string]any{"zones": []any{"mars-north1-a"}}, reason: provider.APIError, says: "mars-north1"},
		"unknown zone":   {options: map[string]any{"zones": []any{"europe-west1-x"}}, reason: provider.APIError, says: "europe-west1-b"},
		"slow":           {prepare: func(w *world) { w.Fail(computetest.Fault{Call: "regions.get", Stall: true}) }, options: map[string]any{"call_timeout": "1s"}, reason: provider.Timeout, says: "time"},
		"addresses are not needed": {config: computetest.Config{Limits: map[string]float64{"IN_USE_ADDRESSES": 0}},
			options: map[string]any{"external_address": false}, reason: provider.Reachable},
		"good": {reason: provider.Reachable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.config)
			if tc.prepare != nil {
				tc.prepare(w)
			}
			for _, v := range w.in(t, tc.options).Check(t.Context()) {
				if v.Reason != tc.reason || v.Ready != (tc.reason == provider.Reachable) || !strings.Contains(v.Message, tc.says) {
					t.Errorf("%s: ready %t, %s: %q, want %s that says %q", v.Target, v.Ready, v.Reason, v.Message, tc.reason, tc.says)
				}
				if v.Ready && (v.Facts["cpus_free"] != "1000" || v.Facts["instances_free"] == "" || v.Facts["region"] != "europe-west1") {
					t.Errorf("facts are %v", v.Facts)
				}
			}
		})
	}
}

// TestCallsOfATask are the figures that docs/gcp.md states.
func TestCallsOfATask(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	p := w.provider(t, "contract")
	s := named(t)
	expect := func(what string, want ...string) {
		t.Helper()
		if got := strings.Join(w.Calls(), " "); got != strings.Join(want, " ") {
			t.Errorf("%s takes\n%s, want\n%s", what, got, strings.Join(want, " "))
		}
	}
	ref := mustCreate(t, p, s).Ref
	expect("a start", "token", "instances.aggregatedList", "instances.insert", "zoneOperations.wait", "instances.get")
	if _, err := p.Get(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	expect("a look", "instances.get")
	if err := p.Stop(t.Context(), ref, ""); err != nil {
		t.Fatal(err)
	}
	expect("an orderly stop", "instances.get", "instances.stop")
	if err := p.Delete(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	expect("a delete", "instances.get", "instances.delete", "zoneOperations.wait")
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("a collection of garbage", "instances.aggregatedList", "disks.aggregatedList")
	p.timing.check = defaultTiming.check
	p.Check(t.Context())
	p.Check(t.Context())
	expect("two checks within five minutes", "projects.testIamPermissions", "regions.get")
}

// However many tasks there are, the watch is one list each interval.
func TestIdleTasksShareTheirCalls(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	p := w.provider(t, "contract")
	for _, alloc := range []string{"a", "b", "c", "d"} {
		s := named(t)
		s.Name = provider.Name("contract", alloc, "proxy")
		changes, err := p.Watch(t.Context(), mustCreate(t, p, s).Ref)
		if err != nil {
			t.Fatal(err)
		}
		<-changes
	}
	w.Calls()
	lists := 0
	for lists < 5 {
		for _, call := range w.Calls() {
			if call != "instances.aggregatedList" {
				t.Fatalf("an idle watch calls %s", call)
			}
			lists++
		}
		if err := pause(t.Context(), fast.watch); err != nil {
			t.Fatal(err)
		}
	}
	const hour = 3600
	if perHour := hour / int(defaultTiming.watch.Seconds()); perHour != 240 {
		t.Errorf("%d lists an hour, and docs/gcp.md says 240", perHour)
	}
	if perHour := hour / int(defaultTiming.consoleIdle.Seconds()); perHour != 60 {
		t.Errorf("%d looks at a silent serial port an hour, and docs/gcp.md says 60", perHour)
	}
}

func TestOptions(t *testing.T) {
	base := map[string]any{"project": testProject, "zones": []any{"europe-west1-b"}}
	for name, tc := range map[string]struct {
		options map[string]any
		want    string
	}{
		"unknown key":           {map[string]any{"zone": "x"}, `"zone"`},
		"no zones":              {map[string]any{"zones": []any{}}, "at least one"},
		"zone":                  {map[string]any{"zones": []any{"europe-west1"}}, `"europe-west1"`},
		"project":               {map[string]any{"project": "My Project"}, `"My Project"`},
		"endpoint in the clear": {map[string]any{"endpoint": "http://compute.example.com"}, "in the clear"},
		"relative credentials":  {map[string]any{"credentials_file": "key.json"}, "absolute"},
		"address":               {map[string]any{"external_address": false, "client_address": "external"}, "external_address = false"},
		"provisioning":          {map[string]any{"provisioning": "cheap"}, "standard, spot"},
		"preemption":            {map[string]any{"on_preemption": "cry"}, "stop, delete"},
		"user data":             {map[string]any{"user_data_key": "x"}, "startup-script"},
		"own label":             {map[string]any{"labels": map[string]any{"egress-x": "y"}}, "provider's own"},
		"label":                 {map[string]any{"labels": map[string]any{"Team": "y"}}, `"Team"`},
		"image":                 {map[string]any{"default_image": "a/b/c"}, "default_image"},
		"timeout":               {map[string]any{"call_timeout": "1ms"}, "call_timeout"},
		"tag":                   {map[string]any{"network_tags": []any{"A"}}, "network_tags"},
	} {
		options := map[string]any{}
		for _, set := range []map[string]any{base, tc.options} {
			for key, value := range set {
				options[key] = value
			}
		}
		if _, err := parse(options); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want it to mention %s", name, err, tc.want)
		}
	}
}

func TestValidate(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	p := w.provider(t, "contract")
	for key, change := range map[string]func(s *provider.Spec){
		"command":        func(s *provider.Spec) { s.Command = "squid" },
		"bind":           func(s *provider.Spec) { s.Bind = "192.0.2.1" },
		"endpoint":       func(s *provider.Spec) { s.Endpoint.Host = "x" },
		"network_config": func(s *provider.Spec) { s.NetworkConfig = []byte("x") },
		"zone":           func(s *provider.Spec) { s.Zone = "europe" },
		"image":          func(s *provider.Spec) { s.Image = "a//b" },
		"user_data":      func(s *provider.Spec) { s.UserData = []byte{0x1f, 0x8b, 0xff} },
		"262144":         func(s *provider.Spec) { s.UserData = make([]byte, maxUserData+1) },
	} {
		s := named(t)
		change(&s)
		if err := p.Validate(s); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, want ErrPermanent that names it", key, err)
		}
	}
	if err := p.Validate(named(t)); err != nil {
		t.Error(err)
	}
}

// What is sent is what the options say.
func TestMachineResource(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	p := w.in(t, map[string]any{
		"provisioning": "spot", "on_preemption": "delete", "external_address": false, "subnetwork": "crawl", "network_tags": []any{"egress"},
		"service_account": "sa@x.iam.gserviceaccount.com", "labels": map[string]any{"team": "crawl"}, "disk_mib": 10241,
		"user_data_key": "startup-script",
	})
	s := named(t)
	s.Image, s.MachineType = "debian-cloud/debian-12", "e2-micro"
	m, err := p.machine(s, "europe-west1-b")
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]bool{
		"spot":         m.GetScheduling().GetProvisioningModel() == "SPOT" && m.GetScheduling().GetInstanceTerminationAction() == "DELETE",
		"no restart":   m.GetScheduling().AutomaticRestart != nil && !m.GetScheduling().GetAutomaticRestart(),
		"no address":   len(m.GetNetworkInterfaces()[0].GetAccessConfigs()) == 0,
		"subnetwork":   m.GetNetworkInterfaces()[0].GetSubnetwork() == "regions/europe-west1/subnetworks/crawl",
		"tags":         m.GetTags().GetItems()[0] == "egress",
		"account":      m.GetServiceAccounts()[0].GetEmail() == "sa@x.iam.gserviceaccount.com",
		"labels":       m.GetLabels()["team"] == "crawl" && strings.HasPrefix(m.GetLabels()["egress-job"], "job_with_capitals-"),
		"disk":         m.GetDisks()[0].GetInitializeParams().GetDiskSizeGb() == 11,
		"image":        m.GetDisks()[0].GetInitializeParams().GetSourceImage() == "projects/debian-cloud/global/images/family/debian-12",
		"machine type": m.GetMachineType() == "zones/europe-west1-b/machineTypes/e2-micro",
		"user-data":    m.GetMetadata().GetItems()[1].GetKey() == "startup-script",
		"port":         m.GetMetadata().GetItems()[0].GetValue() == "3128",
	} {
		if !ok {
			t.Errorf("%s is wrong: %v", what, m)
		}
	}
	standard, err := w.provider(t, "contract").machine(s, "europe-west1-b")
	if err != nil || len(standard.ServiceAccounts) != 0 || len(standard.GetNetworkInterfaces()[0].GetAccessConfigs()) != 1 {
		t.Errorf("%v, %v: want no service account and an external address", standard, err)
	}
}

func FuzzElide(f *testing.F) {
	f.Add([]byte(`{"metadata":{"items":[{"key":"user-data","value":"hunter2"}]},"name":"x"}`))
	f.Add([]byte(`{"metadata":"hunter2`))
	f.Add([]byte(`[[{"a":{"contents":"hunter2"}}]]`))
	f.Add([]byte("\xff\xfe"))
	f.Fuzz(func(t *testing.T, body []byte) {
		line := elide(body)
		if len(line) > maxLine+100 || strings.Contains(line, "\n") {
			t.Errorf("%d bytes: %q", len(line), line)
		}
	})
}

func FuzzReadStamp(f *testing.F) {
	f.Add(`{"egress":{"cluster":"c"},"port":1}`)
	f.Add("{")
	f.Fuzz(func(t *testing.T, text string) {
		if s, ok := readStamp(text); ok && s.Labels.Cluster == "" {
			t.Errorf("%q names no cluster", text)
		}
	})
}
