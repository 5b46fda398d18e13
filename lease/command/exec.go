package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/client"
)

// killAfter is how long a command may take to end after its lease is lost, or
// after Ctrl-C.
const killAfter = 10 * time.Second

func execCommand() *cobra.Command {
	var r remote
	var a ask
	command := &cobra.Command{
		Use:   "exec [selector …] -- command [argument …]",
		Short: "Run a command through a leased proxy",
		Long: `Run a command with HTTP_PROXY and HTTPS_PROXY set from a lease. The lease is
renewed while the command runs, and released after it. When the lease is lost,
the command is ended, since its proxy may serve somebody else by then. The exit
code is that of the command; 3 says that no proxy was free.`,
		Example: `  egress lease exec country=DE -- curl -s https://ifconfig.example
  egress lease exec --target shop.example --wait 1m -- scrapy crawl shop`,
		RunE: func(command *cobra.Command, args []string) error {
			dash := command.ArgsLenAtDash()
			if dash < 0 || dash == len(args) {
				return errors.New("want -- and a command after the selector")
			}
			c, err := r.open(command)
			if err != nil {
				return err
			}
			return runLeased(command, c, a.request(args[:dash]), args[dash:])
		},
	}
	r.flags(command)
	a.flags(command)
	_ = command.Flags().MarkHidden("json")
	return command
}

// runLeased holds a lease while the program runs.
func runLeased(command *cobra.Command, c *client.Client, in api.Acquire, args []string) error {
	held, err := c.Hold(command.Context(), in, func(l api.Lease) {
		fmt.Fprintf(command.ErrOrStderr(), "egress: the session moved to %s (%s); the command keeps its old proxy\n", l.Proxy, l.MovedReason)
	})
	if err != nil {
		return explain(err)
	}
	ctx, cancel := context.WithCancelCause(command.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-held.Lost():
			cancel(fmt.Errorf("the lease was lost: %w", held.Err()))
		case <-ctx.Done():
		}
	}()
	program := exec.CommandContext(ctx, args[0], args[1:]...)
	program.Stdin, program.Stdout, program.Stderr = command.InOrStdin(), command.OutOrStdout(), command.ErrOrStderr()
	program.Env = append(withoutProxies(os.Environ()), proxyEnv(held.Lease())...)
	program.Cancel = func() error { return program.Process.Signal(syscall.SIGTERM) }
	program.WaitDelay = killAfter
	err = program.Run()
	cause := context.Cause(ctx)
	release, done := context.WithTimeout(context.WithoutCancel(ctx), killAfter)
	defer done()
	if rerr := held.Release(release); rerr != nil {
		fmt.Fprintf(command.ErrOrStderr(), "egress: the lease was left to expire: %v\n", rerr)
	}
	var exit *exec.ExitError
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return coded{cause, exitEnded}
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		command.SilenceErrors = true
		return coded{err, exit.ExitCode()}
	}
	return err
}

// proxyVariables are what programs look at; some only at the lower-case names.
var proxyVariables = []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"}

func proxyEnv(l api.Lease) []string {
	env := []string{"EGRESS_LEASE_ID=" + l.ID, "EGRESS_PROXY=" + l.Proxy, "EGRESS_EXIT_IP=" + l.ExitIP}
	for _, name := range proxyVariables {
		env = append(env, name+"="+l.URL)
	}
	return env
}

// withoutProxies drops what would send requests around the leased proxy.
func withoutProxies(env []string) []string {
	drop := append([]string{"ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"}, proxyVariables...)
	var kept []string
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		keep := true
		for _, d := range drop {
			keep = keep && name != d
		}
		if keep {
			kept = append(kept, pair)
		}
	}
	return kept
}
