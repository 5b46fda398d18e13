package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
)

func (a *apiServer) createSecret(w http.ResponseWriter, r *http.Request) {
	secret := new(corev1.Secret)
	if err := decode(r, secret); err != nil {
		refuse(w, 422, metav1.StatusReasonInvalid, err.Error())
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.secrets[secret.Name] != nil {
		refuse(w, 409, metav1.StatusReasonAlreadyExists, "secrets "+secret.Name+" already exists")
		return
	}
	secret.TypeMeta = metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}
	a.secrets[secret.Name] = secret
	answer(w, http.StatusCreated, secret)
}

func (a *apiServer) getSecret(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if secret := a.secrets[r.PathValue("name")]; secret != nil {
		answer(w, http.StatusOK, secret)
		return
	}
	refuse(w, 404, metav1.StatusReasonNotFound, "secrets not found")
}

func (a *apiServer) deleteSecret(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.secrets[r.PathValue("name")] == nil {
		refuse(w, 404, metav1.StatusReasonNotFound, "secrets not found")
		return
	}
	delete(a.secrets, r.PathValue("name"))
	answer(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
}

func (a *apiServer) listQuotas(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer(w, http.StatusOK, corev1.ResourceQuotaList{Items: a.quotas})
}

func (a *apiServer) review(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SelfSubjectAccessReview
	_ = decode(r, &review)
	asked := review.Spec.ResourceAttributes
	a.mu.Lock()
	defer a.mu.Unlock()
	review.Status.Allowed = !slices.Contains(a.denied, strings.TrimSuffix(asked.Verb+" "+asked.Resource+"/"+asked.Subresource, "/"))
	answer(w, http.StatusCreated, review)
}

func (a *apiServer) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.metrics == "" {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	fmt.Fprint(w, a.metrics)
}

// serveLog follows until logEnds.
func (a *apiServer) serveLog(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	for sent, follow := 0, r.URL.Query().Get("follow") == "true"; ; {
		a.mu.Lock()
		text, ends, changed := a.log, a.logEnds, a.changed
		a.mu.Unlock()
		if r.URL.Query().Get("tailLines") == "0" && sent == 0 {
			sent = len(text)
		}
		_, _ = io.WriteString(w, text[sent:])
		_ = flush.Flush()
		sent = len(text)
		if !follow || ends {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// write adds to the log.
func (a *apiServer) write(text string, ends bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log, a.logEnds = a.log+text, ends
	a.wake()
}

// serveExec is a shell that knows three words: "cat" copies its input, "size"
// tells the first size of its terminal, "exit 3" ends with 3.
func serveExec(w http.ResponseWriter, r *http.Request) {
	channels := []wsstream.ChannelType{
		wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel,
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: channels}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer conn.Close()
	status := metav1.Status{Status: metav1.StatusSuccess}
	switch strings.Join(r.URL.Query()["command"], " ") {
	case "cat":
		_, _ = io.Copy(streams[1], streams[0])
		fmt.Fprint(streams[2], "done")
	case "size":
		var size struct{ Width, Height int }
		_ = json.NewDecoder(streams[4]).Decode(&size)
		fmt.Fprintf(streams[1], "%dx%d tty=%s", size.Width, size.Height, r.URL.Query().Get("tty"))
	case "exit 3":
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "3"}},
		}}
	case "hang":
		<-r.Context().Done()
	}
	_ = json.NewEncoder(streams[3]).Encode(status)
}
