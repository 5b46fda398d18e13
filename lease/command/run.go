package command

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/consul"
	leasehttp "github.com/egress-proxies/egress/lease/http"
	"github.com/egress-proxies/egress/lease/metrics"
)

// parts are the long-running parts of the service.
type parts struct {
	service     *lease.Service
	credentials *consul.Credentials
	watcher     *consul.Watcher
	// places is nil when no targets are watched.
	places *consul.PlaceWatcher
	// elector is nil with the memory store.
	elector *consul.Elector
	metrics *metrics.Metrics
	// tokens and certificate are nil when there are none.
	tokens      *leasehttp.Tokens
	certificate *certificate
	logger      hclog.Logger
}

// run serves until ctx ends, then hands the leadership over, lets requests
// finish, and stops everything else.
func (s *serving) run(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer listener.Close()
	p, err := s.parts(listener)
	if err != nil {
		return err
	}
	handler, err := s.handler(p)
	if err != nil {
		return err
	}
	group, alive := errgroup.WithContext(context.WithoutCancel(ctx))
	alive, stopAll := context.WithCancel(alive)
	defer stopAll()
	serving, stopServing := context.WithCancel(alive)
	defer stopServing()
	leading, stopLeading := context.WithCancel(ctx)
	defer stopLeading()
	context.AfterFunc(alive, stopLeading)
	group.Go(func() error { return p.service.Run(alive) })
	group.Go(func() error { return p.watcher.Run(alive) })
	if p.places != nil {
		group.Go(func() error { return p.places.Run(alive) })
	}
	group.Go(func() error {
		return p.credentials.Run(alive, func() { p.service.SetCredentials(p.credentials.Known) })
	})
	if p.tokens != nil {
		group.Go(func() error {
			follow(alive, p.logger, "tokens", p.tokens.Reload, s.tokenFile)
			return nil
		})
	}
	if p.certificate != nil {
		listener = tls.NewListener(listener, p.certificate.config())
		group.Go(func() error {
			follow(alive, p.logger, "certificate", p.certificate.load, s.tlsCert, s.tlsKey)
			return nil
		})
	}
	if p.elector != nil {
		group.Go(func() error { return p.elector.Follow(alive) })
	}
	group.Go(func() error {
		defer stopServing()
		if p.elector != nil {
			return p.elector.Run(leading)
		}
		<-leading.Done()
		return nil
	})
	group.Go(func() error {
		defer stopAll()
		return s.serveHTTP(serving, listener, handler, p.logger)
	})
	if p.elector == nil {
		resign, _ := p.service.Lead(nil, nil)
		defer resign()
	}
	p.logger.Info("the lease service listens", "address", listener.Addr().String(), "services", s.services, "store", s.store)
	return group.Wait()
}

// parts makes the parts; nothing is started.
func (s *serving) parts(listener net.Listener) (*parts, error) {
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "lease", Level: hclog.LevelFromString(s.logLevel), Output: os.Stderr, JSONFormat: s.logJSON,
	})
	client, err := s.consulClient()
	if err != nil {
		return nil, fmt.Errorf("connect to Consul: %w", err)
	}
	p := &parts{logger: logger, metrics: metrics.New()}
	if p.credentials, err = consul.LoadCredentials(s.credentialsFile, logger); err != nil {
		return nil, err
	}
	if s.credentialsKV != "" {
		p.credentials.FromKV(client, s.credentialsKV)
	}
	if s.tokenFile != "" {
		if p.tokens, err = leasehttp.LoadTokens(s.tokenFile); err != nil {
			return nil, err
		}
	}
	if s.tlsCert != "" {
		p.certificate = &certificate{certFile: s.tlsCert, keyFile: s.tlsKey}
		if err := p.certificate.load(); err != nil {
			return nil, err
		}
	}
	p.service = lease.NewService(lease.Config{Rules: s.rules, Logger: logger, Observer: p.metrics})
	p.service.SetCredentials(p.credentials.Known)
	watching := consul.WatcherConfig{Client: client, Services: s.services, Update: p.service.SetProxies, Logger: logger}
	if s.networksFile != "" {
		if watching.Facts, err = consul.LoadFacts(s.networksFile, logger); err != nil {
			return nil, err
		}
	}
	p.watcher = consul.NewWatcher(watching)
	if s.targetService == "" {
		p.service.SetPlaces(nil)
	} else {
		p.places = &consul.PlaceWatcher{Client: client, Service: s.targetService, Update: p.service.SetPlaces, Logger: logger}
	}
	p.metrics.Watch(metrics.Source{Service: p.service, CatalogAge: p.watcher.Age})
	if s.store == "memory" {
		return p, nil
	}
	if s.advertise == "" {
		s.advertise = "http://" + listener.Addr().String()
		if s.tlsCert != "" {
			s.advertise = "https://" + listener.Addr().String()
		}
	}
	if err := consul.CheckAddress(s.advertise); err != nil {
		return nil, fmt.Errorf("--advertise: %w", err)
	}
	p.elector = consul.NewElector(consul.ElectorConfig{
		Client: client, Prefix: s.prefix, ID: strings.ToLower(rand.Text()[:10]), Address: s.advertise,
		Lead: p.service.Lead, Logger: logger,
	})
	return p, nil
}

// forwardFor is how long a request waits for a leader: longer than a change of
// the leader takes after it was killed.
const forwardFor = 15 * time.Second

// handler makes the HTTP side.
func (s *serving) handler(p *parts) (*leasehttp.Server, error) {
	config := leasehttp.Config{
		Service: p.service, Credentials: p.credentials.Get, Metrics: p.metrics.Handler(), Rate: s.rate, Logger: p.logger, Tokens: p.tokens,
		NotReady: func() string {
			if err := p.watcher.Problem(); err != nil {
				return err.Error()
			}
			return ""
		},
	}
	if p.elector != nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = nil // replicas reach each other directly
		transport.MaxIdleConnsPerHost = 64
		authorities, err := roots(s.caFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}
		config.Forward = &leasehttp.Forwarder{
			Leader: p.elector.Leader, Absent: p.elector.Absent, Self: s.advertise, Patience: forwardFor, Client: &http.Client{Transport: transport},
		}
	}
	return leasehttp.New(config), nil
}

// consulClient makes the client; address and token may come from Consul's own
// environment variables.
func (s *serving) consulClient() (*api.Client, error) {
	config := api.DefaultConfig()
	if s.consulAddress != "" {
		address := s.consulAddress
		if scheme, rest, ok := strings.Cut(address, "://"); ok && scheme != "unix" {
			config.Scheme, address = scheme, rest
		}
		config.Address = address
	}
	config.TokenFile = s.consulTokenFile
	return api.NewClient(config)
}

// errStopping is what requests are told that have not finished in time, such as
// acquires that wait. Another replica will do.
var errStopping = fmt.Errorf("%w here: this replica stops; ask another one", lease.ErrNoLeader)

// lastAnswers is how long requests may take to say that they were stopped.
const lastAnswers = 2 * time.Second

// serveHTTP serves until ctx ends; then it lets requests finish.
func (s *serving) serveHTTP(ctx context.Context, listener net.Listener, handler *leasehttp.Server, logger hclog.Logger) error {
	requests, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	server := &http.Server{
		BaseContext:       func(net.Listener) context.Context { return requests },
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          logger.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true}),
	}
	server.RegisterOnShutdown(handler.Close)
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.shutdown+lastAnswers)
		defer cancel()
		patience := time.AfterFunc(s.shutdown, func() { cut(errStopping) })
		defer patience.Stop()
		stopped <- server.Shutdown(ctx)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	if err := <-stopped; err != nil {
		logger.Warn("some requests were cut off", "error", err)
		return server.Close()
	}
	return nil
}
