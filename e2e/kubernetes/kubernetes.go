// Package kubernetes is a cluster to test against: a real etcd and a real API
// server, and either a real kubelet or a small one whose pods are processes of
// this machine.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/egress-proxies/egress/e2e/guard"
)

// Config says what to start.
type Config struct {
	// Program is the one built from e2e/servers/k8s.
	Program string
	// Scheduler starts kube-scheduler too. Without it nothing binds pods to
	// nodes.
	Scheduler bool
}

// Cluster is a running control plane. Its state survives StopAPI and StartAPI.
type Cluster struct {
	// Dir is the scratch directory; all that belongs to the cluster is in it.
	Dir string
	// Admin is the connection of somebody who may do everything, API its client.
	Admin *rest.Config
	API   kubernetes.Interface

	config    Config
	address   string // of etcd and of the API server: a loopback address of the cluster's own
	port      string // of the API server
	store     string // etcd's URL
	tokens    map[User]string
	etcd      part
	apiserver part
	scheduler part
	guard     *guard.Guard
}

// attempts bounds how often other ports are tried.
const attempts = 3

// Start starts a control plane and waits until it is ready. The program that
// calls it calls guard.Main first of all.
func Start(ctx context.Context, config Config) (c *Cluster, err error) {
	for range attempts {
		if c, err = start(ctx, config); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return c, err
		}
	}
	return nil, err
}

func start(ctx context.Context, config Config) (_ *Cluster, err error) {
	c := &Cluster{config: config, address: loopback()}
	if c.Dir, err = os.MkdirTemp("", "egress-e2e-kube-"); err != nil {
		return nil, err
	}
	// Pods run under accounts of their own and look into it.
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		return nil, err
	}
	if c.guard, err = guard.Start(c.Dir, ""); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, c.Logs()), c.Close())
		}
	}()
	if err := c.credentials(); err != nil {
		return nil, err
	}
	if err := c.startEtcd(); err != nil {
		return nil, err
	}
	if c.port, err = freePort(c.address); err != nil {
		return nil, err
	}
	if err := c.StartAPI(ctx); err != nil {
		return nil, err
	}
	if config.Scheduler {
		return c, c.startScheduler()
	}
	return c, nil
}

// Close ends everything and removes the scratch directory.
func (c *Cluster) Close() error {
	return errors.Join(c.scheduler.end(), c.apiserver.end(), c.etcd.end(), c.guard.Close())
}

// Logs is the end of what each part printed.
func (c *Cluster) Logs() string {
	var all strings.Builder
	for _, file := range []string{c.etcd.log, c.apiserver.log, c.scheduler.log, filepath.Join(c.Dir, nodeLog)} {
		if text, err := os.ReadFile(file); err == nil {
			fmt.Fprintf(&all, "--- end of %s\n%s\n", file, text[max(0, len(text)-4000):])
		}
	}
	return all.String()
}

func (c *Cluster) startEtcd() error {
	client, err := freePort(c.address)
	if err != nil {
		return err
	}
	peer, err := freePort(c.address)
	if err != nil {
		return err
	}
	c.store = "http://" + net.JoinHostPort(c.address, client)
	peers := "http://" + net.JoinHostPort(c.address, peer)
	return c.etcd.start(c, "etcd", "--name", "e2e", "--data-dir", "etcd", "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", c.store, "--advertise-client-urls", c.store,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "e2e="+peers)
}

// StartAPI starts the API server, also again after StopAPI, and waits until it
// is ready.
func (c *Cluster) StartAPI(ctx context.Context) error {
	file := func(name string) string { return filepath.Join(c.Dir, name) }
	err := c.apiserver.start(c, "kube-apiserver", "--etcd-servers", c.store,
		"--bind-address", c.address, "--secure-port", c.port, "--cert-dir", file("certs"),
		// Without them the server looks for a default route, and waits at its end.
		"--advertise-address", "198.51.100.1", "--endpoint-reconciler-type", "none",
		"--token-auth-file", file(tokenFile), "--authorization-mode", "Node,RBAC", "--anonymous-auth=false",
		"--service-account-key-file", file(keyFile), "--service-account-signing-key-file", file(keyFile),
		"--service-account-issuer", "https://e2e", "--service-cluster-ip-range", "10.96.0.0/24",
		// Nobody here would take the taint of a new node away.
		"--disable-admission-plugins", "TaintNodesByCondition",
		"--kubelet-preferred-address-types", "InternalIP", "--profiling=false")
	if err != nil {
		return err
	}
	return c.apiserver.ready(ctx, "the API server is ready", func(ctx context.Context) error {
		if c.API == nil {
			if err := c.connect(); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := c.API.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}

// StopAPI ends the API server with kill -9.
func (c *Cluster) StopAPI() error { return c.apiserver.end() }

func (c *Cluster) startScheduler() error {
	kubeconfig, err := c.Kubeconfig(AdminUser, "default")
	if err != nil {
		return err
	}
	return c.scheduler.start(c, "kube-scheduler", "--kubeconfig", kubeconfig, "--leader-elect=false",
		"--secure-port", "0", "--authentication-skip-lookup")
}

// loopback is a loopback address that nothing else is likely to use: outgoing
// connections take their ports from 127.0.0.1.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 20+rand.IntN(80), rand.IntN(256), 1+rand.IntN(254))
}

func freePort(address string) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return "", err
	}
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), listener.Close()
}
