package process

import (
	"errors"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// Validate checks what a task asks for against what this provider has and the
// operator allows.
func (p *Provider) Validate(spec provider.Spec) error {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, provider.Permanentf(format, args...))
	}
	for _, unused := range []struct {
		key string
		set bool
	}{
		{"machine_type", spec.MachineType != ""}, {"image", spec.Image != ""},
		{"user_data", len(spec.UserData) > 0}, {"network_config", len(spec.NetworkConfig) > 0},
		{"endpoint", spec.Endpoint != provider.Endpoint{}},
	} {
		if unused.set {
			problem("%s: the process provider has no use for it", unused.key)
		}
	}
	if spec.Zone != "" && spec.Zone != Zone {
		problem("zone: %q: the process provider knows only %q", spec.Zone, Zone)
	}
	if spec.Port < 1 || spec.Port > 65535 {
		problem("port: %d: want 1 to 65535, or the label of a port of the group's network", spec.Port)
	}
	for _, address := range [][2]string{{"listen", spec.Listen}, {"bind", spec.Bind}} {
		if _, err := netip.ParseAddr(address[1]); address[1] != "" && err != nil {
			problem("%s: %q: want an IP address of this node", address[0], address[1])
		}
	}
	if strings.Contains(spec.Auth.Username, ":") {
		problem("auth: the username has a colon, which Basic authentication can't carry (RFC 7617)")
	}
	if spec.Auth.Username == "" && spec.Auth.Password != "" {
		problem("auth: the username is empty although a password is set")
	}
	problems = append(problems, p.validateCommand(spec, len(problems) == 0)...)
	return join(problems)
}

// validateCommand checks what is run. The built-in proxy's configuration is
// only put together when its parts are sound, lest mistakes be told twice.
func (p *Provider) validateCommand(spec provider.Spec, sound bool) []error {
	if spec.Command == "" {
		if !sound {
			return nil
		}
		if _, err := p.proxyConfig(spec); err != nil {
			return []error{provider.Permanentf("args: %w", err)}
		}
		return nil
	}
	var problems []error
	if !p.options.Command {
		problems = append(problems, provider.Permanentf("command: %q: this provider runs the built-in proxy only (command = false)", spec.Command))
	}
	if strings.Contains(spec.Command, "/") && !filepath.IsAbs(spec.Command) && spec.Dir == "" {
		problems = append(problems, provider.Permanentf("command: %q: want an absolute path or a name in PATH", spec.Command))
	}
	if strings.ContainsRune(spec.Command+strings.Join(spec.Args, "")+strings.Join(spec.Env, ""), 0) {
		problems = append(problems, provider.Permanentf("command: a zero byte can't be part of a command, its args or its environment"))
	}
	return problems
}

// join makes one permanent error of several.
func join(problems []error) error {
	if err := errors.Join(problems...); err != nil {
		return provider.Permanentf("%w", err)
	}
	return nil
}

// defaultUser runs what nobody chose an account for, when the plugin runs as
// root.
const defaultUser = "nobody"

// account decides who the process runs as: the operator's choice, else the
// task's, else nobody. A task can't choose root.
func (p *Provider) account(spec provider.Spec) (*supervise.Account, error) {
	root := os.Geteuid() == 0
	name := p.options.User
	switch {
	case name != "" && spec.User != "" && spec.User != name:
		return nil, provider.Permanentf("user: %q: this provider runs everything as %q", spec.User, name)
	case name == "" && spec.User != "":
		name = spec.User
	case name == "" && root:
		name = defaultUser
	case name == "":
		return nil, nil
	}
	found, err := lookupUser(name)
	if err != nil {
		return nil, err
	}
	if found.UID == uint32(os.Geteuid()) && !root {
		return nil, nil
	}
	if !root {
		return nil, provider.Permanentf("user: %q: the plugin does not run as root and can't change to it", name)
	}
	if found.UID == 0 {
		if p.options.User == "" {
			return nil, provider.Permanentf(`user: %q: want an account other than root, unless the provider has user = "root"`, name)
		}
		return nil, nil
	}
	return found, nil
}

func lookupUser(name string) (*supervise.Account, error) {
	found, err := user.Lookup(name)
	if err != nil {
		if found, err = user.LookupId(name); err != nil {
			return nil, provider.Permanentf("user: %q: no such account on this node", name)
		}
	}
	groups, err := found.GroupIds()
	if err != nil {
		return nil, provider.Permanentf("user: %q: its groups: %w", name, err)
	}
	account := &supervise.Account{}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(found.Gid, 10, 32)
	if err := errors.Join(err, err2); err != nil {
		return nil, provider.Permanentf("user: %q: %w", name, err)
	}
	account.UID, account.GID = uint32(uid), uint32(gid)
	for _, group := range groups {
		id, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			return nil, provider.Permanentf("user: %q: group %q: %w", name, group, err)
		}
		account.Groups = append(account.Groups, uint32(id))
	}
	return account, nil
}
