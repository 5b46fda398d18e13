//go:build deps

package main

import (
	_ "cloud.google.com/go/compute/apiv1"
	_ "github.com/anishathalye/porcupine"
	_ "github.com/digitalocean/go-libvirt"
	_ "github.com/go-viper/mapstructure/v2"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/hashicorp/consul/api"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/nomad/api"
	_ "github.com/hashicorp/nomad/drivers/shared/eventer"
	_ "github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	_ "github.com/hashicorp/nomad/plugins"
	_ "github.com/hashicorp/nomad/plugins/drivers"
	_ "github.com/hashicorp/nomad/plugins/drivers/testutils"
	_ "github.com/hashicorp/nomad/plugins/shared/hclspec"
	_ "github.com/kdomanski/iso9660"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/spf13/cobra"
	_ "github.com/ulikunitz/xz"
	_ "go.uber.org/goleak"
	_ "golang.org/x/crypto/ssh"
	_ "golang.org/x/net/idna"
	_ "golang.org/x/net/publicsuffix"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/time/rate"
	_ "k8s.io/client-go/kubernetes"
)
