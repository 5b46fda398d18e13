package http_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

// Replicas that say "not ready" during each change of the leader would all leave
// Consul at once, although requests only have to wait.
func TestReadinessOutlastsAChangeOfTheLeader(t *testing.T) {
	const self, other = "http://10.0.0.1:7700", "http://10.0.0.2:7700"
	for _, test := range []struct {
		name    string
		unknown bool
		leader  string
		absent  time.Duration
		status  int
		reason  string
	}{
		{"the pool is unknown", true, other, 0, 503, "the pool is not known yet: Consul is down"},
		{"no leader was ever seen", false, "", time.Hour, 503, "no leader"},
		{"no leader for longer than requests wait", false, "", 15 * time.Second, 503, "no leader"},
		{"the lock is this process's, which does not lead any more", false, self, time.Hour, 503, "no leader"},
		{"a change of the leader", false, "", 4 * time.Second, 200, "no leader"},
		{"another process leads", false, other, 0, 200, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			service := lease.NewService(lease.Config{})
			if !test.unknown {
				service.SetProxies([]*lease.Proxy{proxy("a")})
			}
			server := leasehttp.New(leasehttp.Config{
				Service:  service,
				NotReady: func() string { return "Consul is down" },
				Forward: &leasehttp.Forwarder{
					Leader: func() (string, <-chan struct{}) { return test.leader, nil }, Self: self,
					Absent: func() time.Duration { return test.absent }, Patience: 15 * time.Second,
				},
			})
			answer := httptest.NewRecorder()
			server.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+api.PathReady, nil))
			var ready api.Ready
			if err := json.Unmarshal(answer.Body.Bytes(), &ready); err != nil {
				t.Fatal(err)
			}
			if answer.Code != test.status || ready.Ready != (test.status == http.StatusOK) || !strings.HasPrefix(ready.Reason, test.reason) || (ready.Reason == "") != (test.reason == "") {
				t.Errorf("%d %+v, want %d and %q", answer.Code, ready, test.status, test.reason)
			}
		})
	}
}
