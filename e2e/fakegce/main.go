// Command fakegce is a stand-in of the Compute Engine API for trying the gcp
// provider without a project: its machines are processes of the built-in proxy.
//
//	make build && go run ./e2e/fakegce -binary bin/egress
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/egress-proxies/egress/e2e/fakegce/guest"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/provider/gcp/computetest"
)

func main() {
	guard.Main()
	binary := flag.String("binary", "bin/egress", "the egress binary that the machines run")
	delay := flag.Duration("delay", 2*time.Second, "how long an operation takes")
	flag.Parse()
	if err := run(*binary, *delay); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(binary string, delay time.Duration) (err error) {
	binary, err = filepath.Abs(binary)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("-binary: %w: make it with make build", err)
	}
	dir, err := os.MkdirTemp("", "egress-fakegce-")
	if err != nil {
		return err
	}
	ending, err := guard.Start(dir, "")
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := ending.Close(); err == nil {
			err = closeErr
		}
	}()
	const project = "test-project-1"
	server, err := computetest.Start(computetest.Config{Project: project, Delay: delay, Backend: &guest.Proxies{Binary: binary, Dir: dir}})
	if err != nil {
		return err
	}
	defer server.Close()
	key := filepath.Join(dir, "key.json")
	if err := os.WriteFile(key, server.Credentials(), 0o600); err != nil {
		return err
	}
	fmt.Printf(`provider "google" {
  type             = "gcp"
  project          = %q
  zones            = ["europe-west1-b", "europe-west1-c"]
  endpoint         = %q
  credentials_file = %q
}
# Ctrl-C ends it and its machines.
`, project, server.URL(), key)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	for _, problem := range server.Problems() {
		fmt.Fprintln(os.Stderr, "a request that Google would refuse:", problem)
	}
	return nil
}
