package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	compute "cloud.google.com/go/compute/apiv1"
	"github.com/googleapis/gax-go/v2"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"

	"github.com/egress-proxies/egress/provider"
)

// client makes the connection when it is first needed, and anew when the
// credentials file has changed.
type client struct {
	settings settings
	logger   hclog.Logger

	mu      sync.Mutex // guards what follows; held while files are read, never during a call
	session *session
	read    time.Time // modification time of the credentials in use
}

// session is one set of clients over one pool of connections.
type session struct {
	instances  *compute.InstancesClient
	disks      *compute.DisksClient
	operations *compute.ZoneOperationsClient
	regions    *compute.RegionsClient
	http       *http.Client
	calls      *mended
	base       *http.Transport
}

// open gives the session. A credentials file that is missing may appear later;
// one that can't be used needs a person.
func (c *client) open() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	modified := time.Time{}
	if path := c.settings.CredentialsFile; path != "" {
		info, err := os.Stat(path)
		switch {
		case err == nil:
			modified = info.ModTime()
		case c.session != nil: // being replaced: the old ones may still do
			return c.session, nil
		case errors.Is(err, fs.ErrNotExist):
			return nil, provider.Transientf("credentials_file: %w", err)
		default:
			return nil, provider.Permanentf("credentials_file: %w", err)
		}
	}
	if c.session != nil && modified.Equal(c.read) {
		return c.session, nil
	}
	opened, err := connect(c.settings, c.logger)
	if err != nil {
		return nil, err
	}
	if c.session != nil {
		c.session.base.CloseIdleConnections()
	}
	c.session, c.read = opened, modified
	return opened, nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		c.session.base.CloseIdleConnections()
		c.session = nil
	}
}

// Times of a connection. What a call as a whole may take is call_timeout.
const (
	dialTimeout = 10 * time.Second
	keepAlive   = 30 * time.Second
	idleTimeout = 90 * time.Second
)

// connect wires the transport: connections, then the wire log, which so never
// sees a token, then the credentials.
func connect(s settings, logger hclog.Logger) (*session, error) {
	base := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     idleTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 8,
	}
	// Not with the wire log: the answers of the token service are secrets.
	creds, err := detect(s, &credentials.DetectOptions{
		Scopes: []string{cloudPlatform}, Client: &http.Client{Transport: base, Timeout: s.CallTimeout},
	})
	if err != nil {
		return nil, err
	}
	authed, err := htransport.NewTransport(context.Background(), &wireLog{next: base, logger: logger},
		option.WithAuthCredentials(creds), option.WithUserAgent("egress"), option.WithTelemetryDisabled())
	if err != nil {
		return nil, provider.Permanentf("credentials: %w", err)
	}
	transport := &mended{next: authed}
	opened := &session{http: &http.Client{Transport: transport}, calls: transport, base: base}
	options := []option.ClientOption{option.WithHTTPClient(opened.http)}
	if s.Endpoint != "" {
		options = append(options, option.WithEndpoint(s.Endpoint))
	}
	return opened, opened.dial(options)
}

// kinds of credentials that a file may hold. Google's libraries want them named,
// since a file of an unexpected kind could make them call anywhere.
var kinds = []credentials.CredType{
	credentials.ServiceAccount, credentials.AuthorizedUser, credentials.ExternalAccount, credentials.ImpersonatedServiceAccount,
}

// detect finds the credentials: those of the file or, without one, the
// Application Default Credentials. Its errors hold nothing of the file.
func detect(s settings, options *credentials.DetectOptions) (*auth.Credentials, error) {
	if s.CredentialsFile == "" {
		creds, err := credentials.DetectDefault(options)
		if err != nil {
			return nil, provider.Transientf("no Application Default Credentials: set credentials_file, GOOGLE_APPLICATION_CREDENTIALS, or run on Compute Engine with a service account: %w", err)
		}
		return creds, nil
	}
	content, err := os.ReadFile(s.CredentialsFile)
	if err != nil {
		return nil, provider.Transientf("credentials_file: %w", err)
	}
	var file struct{ Type credentials.CredType }
	if err := json.Unmarshal(content, &file); err != nil || !slices.Contains(kinds, file.Type) {
		return nil, provider.Permanentf("credentials_file %q: want JSON whose type is one of %v", s.CredentialsFile, kinds)
	}
	creds, err := credentials.NewCredentialsFromJSON(file.Type, content, options)
	if err != nil {
		return nil, provider.Permanentf("credentials_file %q: a credential configuration of type %s that can't be used: %w", s.CredentialsFile, file.Type, err)
	}
	return creds, nil
}

func (s *session) dial(options []option.ClientOption) (err error) {
	ctx := context.Background() // the REST clients connect to nothing by themselves
	if s.instances, err = compute.NewInstancesRESTClient(ctx, options...); err != nil {
		return provider.Permanentf("endpoint: %w", err)
	}
	if s.disks, err = compute.NewDisksRESTClient(ctx, options...); err != nil {
		return provider.Permanentf("endpoint: %w", err)
	}
	if s.operations, err = compute.NewZoneOperationsRESTClient(ctx, options...); err != nil {
		return provider.Permanentf("endpoint: %w", err)
	}
	if s.regions, err = compute.NewRegionsRESTClient(ctx, options...); err != nil {
		return provider.Permanentf("endpoint: %w", err)
	}
	return nil
}

// maxTries of one call. Every call of ours may be repeated: those that change
// something have a request id.
const maxTries = 4

// retryer repeats what may work in a moment: a rate limit, an error of
// Google's own, an answer that was cut off.
type retryer struct {
	timing timing
	tries  int
}

// Retry implements gax.Retryer.
func (r *retryer) Retry(err error) (time.Duration, bool) {
	r.tries++
	if r.tries >= maxTries || provider.IsCanceled(err) || status(err) == http.StatusConflict ||
		provider.Classify(translate("", err)) != provider.ErrTransient {
		return 0, false
	}
	return min(r.timing.backoff<<(r.tries-1), r.timing.backoffMax), true
}

func (p *Provider) retry() gax.CallOption {
	return gax.WithRetry(func() gax.Retryer { return &retryer{timing: p.timing} })
}

// call opens the session and bounds one call with its repetitions.
func (p *Provider) call(ctx context.Context) (context.Context, context.CancelFunc, *session, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, nil, provider.Transientf("%w", context.Cause(ctx))
	}
	opened, err := p.client.open()
	if err != nil {
		return nil, nil, nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	numbered, end := opened.calls.begin(bounded)
	return numbered, func() { end(); cancel() }, opened, nil
}
