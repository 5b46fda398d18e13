package kubernetes

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/rest"
)

// Fault is asked about each request that a user sends, before it reaches the API
// server when answer is nil, and again with the answer. What it gives is an HTTP
// status that the user gets instead, or Pass or Cut.
type Fault func(request *http.Request, answer *http.Response) int

const (
	// Pass lets the request go on its way.
	Pass = 0
	// Cut ends the connection without an answer. client-go asks ten times then.
	Cut = -1
)

// Faulty is a way to the API server on which things go wrong.
type Faulty struct {
	// Kubeconfig is a user's, over this way.
	Kubeconfig string

	server *http.Server
	done   chan error
}

// Faulty makes one.
func (c *Cluster) Faulty(user User, fault Fault) (*Faulty, error) {
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile: filepath.Join(c.Dir, "certs", "apiserver.crt"),
	}})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(c.address, "0"))
	if err != nil {
		return nil, err
	}
	f := &Faulty{done: make(chan error, 1)}
	target := &url.URL{Scheme: "https", Host: c.Address()}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			// client-go sends no token over a way without TLS.
			r.Out.Header.Set("Authorization", "Bearer "+c.tokens[user])
		},
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ModifyResponse: func(answer *http.Response) error {
			if status := fault(answer.Request, answer); status != Pass {
				return refusal(status)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			status := refusal(Cut)
			_ = errors.As(err, &status)
			status.answer(w)
		},
	}
	f.server = &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := fault(r, nil); status != Pass {
			refusal(status).answer(w)
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { f.done <- f.server.Serve(listener) }() // Close waits for it
	f.Kubeconfig, err = c.kubeconfig(user, "default", "http://"+listener.Addr().String())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// refusal is what a fault gave.
type refusal int

func (r refusal) Error() string { return strconv.Itoa(int(r)) }

func (r refusal) answer(w http.ResponseWriter) {
	if r == Cut {
		panic(http.ErrAbortHandler)
	}
	http.Error(w, http.StatusText(int(r)), int(r))
}

// Close ends it and the connections through it.
func (f *Faulty) Close() error {
	err := f.server.Close()
	if ended := <-f.done; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
