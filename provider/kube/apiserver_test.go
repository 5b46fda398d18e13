package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/egress-proxies/egress/provider"
)

// apiServer stands in for the API server where the real one, which e2e has,
// can't be made to do what a test is about. It keeps pods and Secrets, watches
// them, and counts and spoils calls.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	version int
	oldest  int // versions before it can't be watched from
	pods    map[string]*corev1.Pod
	secrets map[string]*corev1.Secret
	events  []event
	watches int // closing bumps it
	calls   []string
	faults  []*fault

	hold    bool // pods stay pending
	silent  bool // no node confirms the end of a pod
	denied  []string
	quotas  []corev1.ResourceQuota
	metrics string // of the metrics API; empty is a cluster without one
	log     string
	logEnds bool
}

type event struct {
	Type    string      `json:"type"`
	Object  *corev1.Pod `json:"object"`
	version int
}

// fault spoils a call ("create pods", "watch pods").
type fault struct {
	call    string // empty is every call
	times   int    // 0 is always
	after   bool   // the call does its work first
	status  int
	message string
	retry   string // Retry-After
	stall   bool   // no answer until the client goes
	cut     bool   // the connection breaks
	body    string // instead of the answer
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{changed: make(chan struct{}), pods: map[string]*corev1.Pod{}, secrets: map[string]*corev1.Secret{}}
	mux := http.NewServeMux()
	const namespace = "/api/v1/namespaces/{namespace}"
	mux.HandleFunc("POST "+namespace+"/pods", a.createPod)
	mux.HandleFunc("GET "+namespace+"/pods", a.listPods)
	mux.HandleFunc("GET "+namespace+"/pods/{name}", a.getPod)
	mux.HandleFunc("DELETE "+namespace+"/pods/{name}", a.deletePod)
	mux.HandleFunc("GET "+namespace+"/pods/{name}/log", a.serveLog)
	mux.HandleFunc(namespace+"/pods/{name}/exec", serveExec)
	mux.HandleFunc("POST "+namespace+"/secrets", a.createSecret)
	mux.HandleFunc("GET "+namespace+"/secrets/{name}", a.getSecret)
	mux.HandleFunc("DELETE "+namespace+"/secrets/{name}", a.deleteSecret)
	mux.HandleFunc("GET "+namespace+"/resourcequotas", a.listQuotas)
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", a.review)
	mux.HandleFunc("GET /apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods", a.serveMetrics)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"gitVersion":"v1.35.4"}`) })
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.meet(w, r, mux) }))
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// meet counts a call and lets a fault have it.
func (a *apiServer) meet(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	call := callOf(r)
	a.mu.Lock()
	a.calls = append(a.calls, call)
	var met *fault
	for i, f := range a.faults {
		if f.call == "" || f.call == call {
			met = f
			if f.times--; f.times == 0 {
				a.faults = slices.Delete(a.faults, i, i+1)
			}
			break
		}
	}
	a.mu.Unlock()
	switch {
	case met == nil:
		handler.ServeHTTP(w, r)
		return
	case met.after:
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	switch {
	case met.stall:
		_, _ = io.Copy(io.Discard, r.Body) // only then the client's end is seen
		<-r.Context().Done()
	case met.cut:
		panic(http.ErrAbortHandler)
	case met.body != "":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, met.body)
	default:
		if met.retry != "" {
			w.Header().Set("Retry-After", met.retry)
		}
		refuse(w, met.status, reasons[met.status], met.message)
	}
}

// callOf is the verb and the resource as in a role.
func callOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, named := parts[len(parts)-1], false
	if i := slices.Index(parts, "namespaces"); i >= 0 {
		rest := parts[i+2:]
		resource, named = rest[0], len(rest) > 1
		if len(rest) > 2 {
			resource += "/" + rest[2]
		}
		if parts[1] == "metrics.k8s.io" {
			resource = "metrics"
		}
	}
	switch {
	case r.Method == http.MethodPost:
		return "create " + resource
	case r.Method == http.MethodDelete:
		return "delete " + resource
	case r.URL.Query().Get("watch") != "":
		return "watch " + resource
	case named, resource == "version":
		return "get " + resource
	default:
		return "list " + resource
	}
}

var reasons = map[int]metav1.StatusReason{
	401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound,
	409: metav1.StatusReasonConflict, 410: metav1.StatusReasonExpired, 422: metav1.StatusReasonInvalid,
	429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError, 503: metav1.StatusReasonServiceUnavailable,
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}

// decode reads what a client sent: protobuf, as a rule.
func decode(r *http.Request, into runtime.Object) error {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	}
	return err
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// emit makes a new version of a pod known; a.mu is held.
func (a *apiServer) emit(kind string, pod *corev1.Pod) {
	a.version++
	pod.ResourceVersion = strconv.Itoa(a.version)
	a.events = append(a.events, event{kind, pod.DeepCopy(), a.version})
	a.wake()
}

func (a *apiServer) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiServer) createPod(w http.ResponseWriter, r *http.Request) {
	pod := new(corev1.Pod)
	if err := decode(r, pod); err != nil {
		refuse(w, 422, metav1.StatusReasonInvalid, err.Error())
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[pod.Name] != nil {
		refuse(w, 409, metav1.StatusReasonAlreadyExists, "pods "+pod.Name+" already exists")
		return
	}
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprintf("uid-%d", a.version)), metav1.Now()
	pod.Status.Phase = corev1.PodPending
	a.pods[pod.Name] = pod
	a.emit("ADDED", pod)
	answer(w, http.StatusCreated, pod)
	if !a.hold {
		pod = pod.DeepCopy()
		runs(pod)
		a.pods[pod.Name] = pod
		a.emit("MODIFIED", pod)
	}
}

// runs is a pod that its node has started.
func runs(pod *corev1.Pod) {
	pod.Spec.NodeName = "node-1"
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
}

// put makes a pod without a call.
func (a *apiServer) put(p *Provider, spec provider.Spec) provider.Ref {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := newPod(p.settings, spec)
	pod.UID = types.UID(fmt.Sprintf("uid-%d", a.version))
	runs(pod)
	a.pods[pod.Name] = pod
	a.emit("ADDED", pod)
	return provider.Ref{Name: pod.Name}
}

// change changes a pod.
func (a *apiServer) change(name string, change func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := a.pods[name].DeepCopy()
	change(pod)
	a.pods[name] = pod
	a.emit("MODIFIED", pod)
}

// vanish removes a pod and what it owns; a.mu is held.
func (a *apiServer) vanish(name string) {
	pod := a.pods[name].DeepCopy()
	delete(a.pods, name)
	for key, secret := range a.secrets {
		if len(secret.OwnerReferences) > 0 && secret.OwnerReferences[0].UID == pod.UID {
			delete(a.secrets, key)
		}
	}
	a.emit("DELETED", pod)
}

func (a *apiServer) getPod(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pod := a.pods[r.PathValue("name")]; pod != nil {
		answer(w, http.StatusOK, pod)
		return
	}
	refuse(w, 404, metav1.StatusReasonNotFound, "pods not found")
}

func (a *apiServer) deletePod(w http.ResponseWriter, r *http.Request) {
	var options metav1.DeleteOptions
	_ = decode(r, &options)
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := a.pods[r.PathValue("name")]
	switch {
	case pod == nil:
		refuse(w, 404, metav1.StatusReasonNotFound, "pods not found")
		return
	case options.Preconditions != nil && *options.Preconditions.UID != pod.UID:
		refuse(w, 409, metav1.StatusReasonConflict, "the UID in the precondition does not match")
		return
	}
	answer(w, http.StatusOK, pod)
	if now := metav1.Now(); pod.DeletionTimestamp == nil {
		pod = pod.DeepCopy()
		pod.DeletionTimestamp = &now
		a.pods[pod.Name] = pod
		a.emit("MODIFIED", pod)
	}
	forced := options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0
	if forced || !a.silent || pod.Spec.NodeName == "" {
		a.vanish(pod.Name)
	}
}

func (a *apiServer) listPods(w http.ResponseWriter, r *http.Request) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		refuse(w, 400, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if r.URL.Query().Get("watch") != "" {
		a.serveWatch(w, r, selector)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
	for _, pod := range a.pods {
		if selector.Matches(labels.Set(pod.Labels)) {
			list.Items = append(list.Items, *pod)
		}
	}
	answer(w, http.StatusOK, list)
}

func (a *apiServer) serveWatch(w http.ResponseWriter, r *http.Request, selector labels.Selector) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	a.mu.Lock()
	watches := a.watches
	if from < a.oldest {
		a.mu.Unlock()
		refuse(w, 410, metav1.StatusReasonExpired, "too old resource version")
		return
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	for encoder := json.NewEncoder(w); ; {
		a.mu.Lock()
		changed, closed := a.changed, a.watches != watches
		for _, e := range a.events {
			if e.version > from && selector.Matches(labels.Set(e.Object.Labels)) {
				_ = encoder.Encode(e)
			}
		}
		from = a.version
		a.mu.Unlock()
		_ = flush.Flush()
		if closed {
			return
		}
		select {
		case <-changed:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// closeWatches ends the watches, as a server does now and then; expired says
// that they can't go on where they were.
func (a *apiServer) closeWatches(expired bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	if expired {
		a.version++
		a.oldest = a.version
	}
	a.wake()
}

// spoil adds a fault, and mend ends them all.
func (a *apiServer) spoil(f fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, &f)
}

func (a *apiServer) mend() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = nil
}

// counts is how often each call was made since the last time it was asked.
func (a *apiServer) counts() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := make(map[string]int)
	for _, call := range a.calls {
		counts[call]++
	}
	a.calls = nil
	return counts
}

// left is how many pods and Secrets there are.
func (a *apiServer) left() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.pods) + len(a.secrets)
}

// quick is a timing for tests.
var quick = timing{
	again: 10 * time.Millisecond, cleanup: 20 * time.Second, rewatch: 10 * time.Millisecond, longest: 50 * time.Millisecond,
	watch: time.Hour, overdue: time.Hour, check: time.Hour, rights: time.Hour, stats: time.Hour,
}

// provider is a plugin that was started anew.
func (a *apiServer) provider(t *testing.T, options map[string]any, timing timing) *Provider {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	a.writeKubeconfig(t, file)
	all := map[string]any{"kubeconfig": file}
	for key, value := range options {
		all[key] = value
	}
	s, err := parse(all)
	if err != nil {
		t.Fatal(err)
	}
	p := build(s, provider.Env{Cluster: "contract"}, timing)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (a *apiServer) writeKubeconfig(t *testing.T, file string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, a.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
