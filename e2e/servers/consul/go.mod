// The real Consul agent that the end-to-end tests run, built from the module
// proxy. A module of its own: its pins must not reach the product's.
module github.com/egress-proxies/egress/e2e/servers/consul

go 1.20

require github.com/hashicorp/consul v1.13.9

replace launchpad.net/gocheck => github.com/go-check/check v0.0.0-20140225173054-eb6ee6f84d0a
