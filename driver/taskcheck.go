package driver

import (
	"fmt"
	"net"

	"github.com/egress-proxies/egress/driver/registry"
)

// check finds what is wrong across keys. place is nil when the provider isn't
// known, which has been told already.
func (t *taskConfig) check(place *place, p *problems) {
	if t.UserData != "" && t.UserDataFile != "" {
		p.add("user_data_file", t.UserDataFile, "user_data is set too: want one of them")
	}
	if t.Bind != "" && net.ParseIP(t.Bind) == nil {
		p.add("bind", t.Bind, "want an IP address of the node")
	}
	if t.Probe.Enabled && len(t.Probe.URLs) == 0 && t.Probe.ExitIPURL == "" {
		p.in("probe").missing("urls", "want at least one URL to fetch through the proxy, here or in the plugin's own"+
			" probe block, or enabled = false")
	}
	if place != nil && t.Port != "" && place.kind == "external" {
		p.add("port", t.Port, "the port of an external proxy stands in its endpoint block")
	}
	for i, tag := range t.Service.Tags {
		if tag == "" {
			p.in("service").add(fmt.Sprintf("tags[%d]", i), tag, "want a tag that isn't empty")
		}
	}
	p.in("attributes").note(registry.CheckAttributes(t.Attributes))
}

// checkService checks the name of a service.
func checkService(p *problems, key, name string) {
	if err := registry.CheckService(name); err != nil {
		p.add(key, name, err.Error())
	}
}
