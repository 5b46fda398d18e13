package probe

import (
	"net/netip"
	"time"
)

// Stage is the step of a probe that failed.
type Stage string

// The stages, in the order in which a probe passes them.
const (
	// StageDNS: the proxy's own name did not resolve.
	StageDNS Stage = "dns"
	// StageTCP: no connection to the proxy.
	StageTCP Stage = "tcp"
	// StageAuth: a 407, whoever sent it and at whatever step.
	StageAuth Stage = "auth"
	// StageConnect: the proxy did not open the tunnel that https needs.
	StageConnect Stage = "connect"
	// StageTLS: the tunnel does not lead to a server with a trusted
	// certificate for the target's name.
	StageTLS Stage = "tls"
	// StageHTTP: no answer in HTTP with a status of 2xx.
	StageHTTP Stage = "http"
	// StageTimeout: the time was up; the message says in which step.
	StageTimeout Stage = "timeout"
)

// Works is the message of every verdict that is OK.
const Works = "proxy works"

// Verdict is the result of one probe.
type Verdict struct {
	// OK is true when a URL was fetched through the proxy.
	OK bool
	// Stage is the step that failed; empty when OK.
	Stage Stage
	// Message is one line for people: Works, or the stage and what went wrong
	// there. It is the same for the same fault, whenever and however often it
	// is seen: no times, source ports, counters or server-made text. It never
	// contains credentials.
	Message string
	// ExitIP is the address that the exit-IP URL saw, never an IPv4-mapped
	// IPv6 address, so that two spellings compare equal. The zero Addr is
	// "unknown", which does not make the proxy fail.
	ExitIP netip.Addr
	// ExitIPProblem says why ExitIP is unknown although a URL was given; empty
	// otherwise. As stable as Message.
	ExitIPProblem string
	// Latency is from dialling the proxy to the end of the answer, of the URL
	// that worked; 0 when none did.
	Latency time.Duration
}

// Known is false for the zero Verdict, which says nothing.
func (v Verdict) Known() bool { return v.OK || v.Stage != "" }
