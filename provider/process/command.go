package process

import (
	"errors"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/provider/process/forward"
)

// Commands are the verbs of the command line that belong to this provider.
func Commands() []*cobra.Command { return []*cobra.Command{proxyCommand()} }

func proxyCommand() *cobra.Command {
	var flags proxyFlags
	var listen, bind, credentialsFile string
	command := &cobra.Command{
		Use:   "proxy",
		Short: "Run the built-in forward proxy",
		Long: `Run the built-in forward proxy: CONNECT tunnels, and http in absolute form.

It is what a task of the process provider runs; started by hand it serves until
SIGTERM or Ctrl-C, lets tunnels finish within --drain-timeout, and reads its
credentials again on SIGHUP. The access log goes to standard output.

Clients are accepted from this node and from private networks, and targets that
are private or local are refused, unless the flags say otherwise. A user and a
password come from --credentials-file, {"username":"u","password":"p"}, or from
the variables EGRESS_USERNAME and EGRESS_PASSWORD.`,
		Example: `  egress proxy --listen 127.0.0.1:3128
  egress proxy --listen :3128 --bind 192.0.2.7 --credentials-file /etc/egress/proxy.json
  egress proxy --listen :3128 --allow-client 203.0.113.0/24 --allow-target 10.1.0.0/16`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := flags.config()
			if err != nil {
				return err
			}
			config.Listen, config.CredentialsFile = listen, credentialsFile
			if credentialsFile == "" {
				config.Username, config.Password = os.Getenv("EGRESS_USERNAME"), os.Getenv("EGRESS_PASSWORD")
			}
			if bind != "" {
				if config.Bind, err = netip.ParseAddr(bind); err != nil {
					return errors.New("--bind " + bind + ": want an IP address of this node")
				}
			}
			return forward.Run(config, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	set := command.Flags()
	set.StringVar(&listen, "listen", "127.0.0.1:3128", "address and port to listen on; :3128 is every address")
	set.StringVar(&bind, "bind", "", "source address of outgoing connections")
	set.StringVar(&credentialsFile, "credentials-file", "", "file with the username and the password that clients must give")
	flags.add(set, forward.Config{AllowClients: forward.PrivateClients(), IdleTimeout: forward.DefaultIdleTimeout})
	return command
}
