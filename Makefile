# Everything that a person or CI does with the project, one word each.
# `make` alone explains them.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO           ?= go
EGRESS_CACHE ?= $(or $(HOME),/root)/.cache/egress
COMMIT       ?= $(shell git describe --always --dirty 2>/dev/null)
STATICCHECK  := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# What of the tests to run, as for `go test -run`.
RUN          ?= .
# Flags of every `go test`; -count=1 because the tests watch the machine.
TESTFLAGS    ?= -race -count=1
# Packages whose tests start real agents. They run after the others, alone.
E2E          := ./e2e/...

# Stamping the version is our own business: Go's asks git, and refuses a tree
# that belongs to another user.
export GOFLAGS ?= -buildvcs=false
export EGRESS_CACHE

# The real servers are built from the module proxy, once for each content of
# their go.mod and go.sum, outside the work tree. An agent of one's own choice
# goes into EGRESS_NOMAD_BIN or EGRESS_CONSUL_BIN. The k8s binary is etcd, the API
# server, the scheduler and the kubelet in one (e2e/servers/k8s).
key     = $(shell cat e2e/servers/$(1)/go.mod e2e/servers/$(1)/go.sum | sha256sum | cut -c1-12)
NOMAD  := $(EGRESS_CACHE)/bin/nomad-$(call key,nomad)
CONSUL := $(EGRESS_CACHE)/bin/consul-$(call key,consul)
K8S    := $(EGRESS_CACHE)/bin/k8s-$(call key,k8s)
export EGRESS_NOMAD_BIN  ?= $(NOMAD)
export EGRESS_CONSUL_BIN ?= $(CONSUL)
export EGRESS_K8S_BIN    ?= $(K8S)

# What CI keeps: pictures of the status page.
export EGRESS_SCREENSHOT ?= $(CURDIR)/bin/artifacts/status-page.png

.PHONY: help build test unit e2e e2e-full lint bench demo dev servers deps clean

help: ## explain the targets (the default)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "One test:     make e2e RUN=TestRestartOnCrash"
	@echo "Built once:   $(EGRESS_CACHE)"

build: ## build the binary bin/egress
	$(GO) build -ldflags '-X github.com/egress-proxies/egress/internal/version.Commit=$(COMMIT)' -o bin/egress .

test: deps servers lint unit e2e ## everything that CI runs: lint, unit tests, then real agents

unit: deps $(EGRESS_CONSUL_BIN) ## the tests that start no Nomad, with the race detector
	$(GO) test $(TESTFLAGS) -run '$(RUN)' $$($(GO) list ./... | grep -v '/e2e')

e2e: deps servers ## the tests against real Nomad and Consul agents
	$(GO) test $(TESTFLAGS) -v -parallel 4 -timeout 40m -run '$(RUN)' $(E2E)

e2e-full: deps-full servers ## the same with the slow cases
	EGRESS_E2E_FULL=1 $(GO) test $(TESTFLAGS) -v -parallel 4 -timeout 120m -run '$(RUN)' $(E2E) ./lease/command

lint: deps ## gofmt, go vet and staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go' 2>/dev/null || echo .)); \
	 if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

bench: deps-bench servers ## all benchmarks; the figures that matter are ratios within one run
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

# Who has Nomad or Consul installed watches the tour on those; the demo says
# which ones it uses.
demo dev: deps-demo $(if $(shell command -v nomad),,$(NOMAD)) $(if $(shell command -v consul),,$(CONSUL))
demo: ## Consul, Nomad, a fleet and the lease service, shown step by step; Ctrl-C cleans up
dev: ## the same without the tour
demo dev:
	@$(GO) run ./e2e/demo $(if $(filter dev,$@),-tour=false)

servers: $(EGRESS_NOMAD_BIN) $(EGRESS_CONSUL_BIN) $(EGRESS_K8S_BIN) ## build the real Nomad, Consul and Kubernetes of the tests (25 min once)

# The name without the key is for people and for tests that run without make.
$(NOMAD) $(CONSUL): $(EGRESS_CACHE)/bin/%:
	@name='$(firstword $(subst -, ,$*))'; mkdir -p '$(@D)'; echo "building $$name, once"; \
	 cd e2e/servers/$$name && $(GO) build -o '$@'.$$$$ github.com/hashicorp/$$name && \
	 mv '$@'.$$$$ '$@' && ln -sfn '$(@F)' '$(@D)'/$$name

# -trimpath would keep the build from sharing packages with our own client-go.
K8S_VERSION = $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' e2e/servers/k8s/go.mod)
K8S_LDFLAGS = -s -w -X k8s.io/component-base/version.gitVersion=$(K8S_VERSION) \
              -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(K8S_VERSION)))
$(K8S):
	@mkdir -p '$(@D)'; echo "building Kubernetes $(K8S_VERSION) and etcd, once"; \
	 cd e2e/servers/k8s && $(GO) build -ldflags '$(K8S_LDFLAGS)' -o '$@'.$$$$ . && \
	 mv '$@'.$$$$ '$@' && ln -sfn '$(@F)' '$(@D)'/k8s

# What a bare Debian lacks, installed by name and only when missing.
# gcc and libc6-dev: the race detector. curl: the demo's tour. libvirt, QEMU and
# sshd: real hypervisors, each in namespaces of its test. chromium: the status
# page. squid: the proxy of the pods, with the configuration they get.
DEPS       := gcc libc6-dev curl ca-certificates libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils \
              ovmf openssh-server openssh-client iproute2 util-linux chromium squid $(shell cat e2e/hypervisor/packages.txt)
DEPS_DEMO  := curl ca-certificates
DEPS_FULL  := $(shell cat e2e/hypervisor/full/packages.txt) containerd runc containernetworking-plugins
DEPS_BENCH := squid tinyproxy

deps: ## install the Debian packages that the tests need, those that are missing
	@$(call install,$(DEPS))

.PHONY: deps-full deps-bench deps-demo
deps-full: deps
	@$(call install,$(DEPS_FULL))
deps-demo:
	@$(call install,$(DEPS_DEMO))
deps-bench: deps
	@$(call install,$(DEPS_BENCH))

# The packages' daemons stay off (policy-rc.d says so, exit code 101): the tests
# start their own, and a squid of Debian's would hold port 3128 and be open to all.
install = missing=$$(for p in $(1); do dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || echo $$p; done); \
	 if [ -n "$$missing" ]; then \
	   if [ "$$(id -u)" != 0 ]; then echo "missing packages; as root: apt-get install $$(echo $$missing)"; exit 1; fi; \
	   if [ ! -e /usr/sbin/policy-rc.d ]; then \
	     trap 'rm -f /usr/sbin/policy-rc.d' EXIT; printf '\#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; \
	   fi; \
	   export DEBIAN_FRONTEND=noninteractive; apt-get update -q; apt-get install -qy --no-install-recommends $$missing; \
	 fi

clean: ## remove what was built in the work tree; the cache stays (EGRESS_CACHE)
	rm -rf bin
