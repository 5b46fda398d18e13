package command

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/client"
)

// remote is how the verbs reach the service.
type remote struct {
	address   string
	tokenFile string
	token     string
	caFile    string
	asJSON    bool
}

// defaultAddress is where `egress lease serve` listens by default. Consul uses
// 8300 to 8302 and 8500 to 8600, Nomad 4646 to 4648.
const defaultAddress = "127.0.0.1:7700"

func (r *remote) flags(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&r.address, "address", "http://"+defaultAddress, "URL of the lease service")
	f.StringVar(&r.tokenFile, "token-file", "", "file with the bearer token")
	f.StringVar(&r.caFile, "ca-file", "", "authorities of the service's certificate (default: the system's)")
	f.BoolVar(&r.asJSON, "json", false, "print JSON")
}

// open makes the client. The token comes from the file or from
// EGRESS_LEASE_TOKEN: an argument would be visible in the process list.
func (r *remote) open(command *cobra.Command) (*client.Client, error) {
	if err := fromEnv(command.Flags()); err != nil {
		return nil, err
	}
	r.token = os.Getenv(envPrefix + "TOKEN")
	if r.tokenFile != "" {
		data, err := os.ReadFile(r.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
		r.token = strings.TrimSpace(string(data))
		if strings.HasPrefix(r.token, "{") {
			return nil, fmt.Errorf("token file %s: want the token alone; this looks like the service's list of tokens", r.tokenFile)
		}
	}
	authorities, err := roots(r.caFile)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}
	return client.New(client.Config{Address: r.address, Token: r.token, HTTP: &http.Client{Transport: transport}})
}

// The exit codes of the verbs, for scripts.
const (
	exitNoProxy = 3
	exitEnded   = 4
)

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

// ExitCode is read by main.
func (c coded) ExitCode() int { return c.code }

// Unwrap gives the cause.
func (c coded) Unwrap() error { return c.error }

// explain gives an error of the service an exit code: 3 when no proxy is free,
// 4 when the lease or the session has ended.
func explain(err error) error {
	var p *api.Problem
	if !errors.As(err, &p) {
		return err
	}
	if p.RetryAfterSeconds > 0 {
		err = fmt.Errorf("%w (try again in %d s)", err, p.RetryAfterSeconds)
	}
	switch p.Code() {
	case api.CodeNoCapacity, api.CodeNoMatch:
		return coded{err, exitNoProxy}
	case api.CodeEnded, api.CodeSessionEnded, api.CodeUnknownLease:
		return coded{err, exitEnded}
	}
	return err
}
