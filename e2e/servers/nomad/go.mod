// The real Nomad agent that the end-to-end tests run, built from the module
// proxy. A module of its own: its pins must not reach the product's.
module github.com/egress-proxies/egress/e2e/servers/nomad

go 1.20

require (
	github.com/hashicorp/nomad v1.6.1
	github.com/hashicorp/nomad/api v0.0.0-20230721134942-515895c7690c
)

replace (
	github.com/Microsoft/go-winio => github.com/endocrimes/go-winio v0.4.13-0.20190628114223-fb47a8b41948
	github.com/armon/go-metrics => github.com/armon/go-metrics v0.0.0-20230509193637-d9ca9af9f1f9
	github.com/hashicorp/hcl => github.com/hashicorp/hcl v1.0.1-0.20201016140508-a07e7d50bbee
)
