// Package virt speaks to the libvirt daemon of one host: calls that end with
// their context, leave one line each in the debug log, and give errors of the
// classes of package provider.
//
// go-libvirt's calls take no context and never time out. Each therefore runs
// in a goroutine of its own that the Host owns; a caller that gives up leaves
// it behind, and it ends with the daemon's answer or with the connection. How
// many may be left is bounded by the number of calls in flight.
package virt
