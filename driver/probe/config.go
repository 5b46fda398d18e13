package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// The defaults of Config.
const (
	// DefaultInterval between the starts of two probes.
	DefaultInterval = 10 * time.Second
	// DefaultTimeout of one probe.
	DefaultTimeout = 5 * time.Second
	// DefaultSuccesses in a row make a critical proxy pass again.
	DefaultSuccesses = 1
	// DefaultFailures in a row make a passing proxy critical.
	DefaultFailures = 3
)

// minInterval protects the target and the proxy from a typo such as "10ms".
const minInterval = 100 * time.Millisecond

// Config says what to fetch through a proxy, how often, and what counts.
type Config struct {
	// URLs to fetch, http or https. They are tried in the order given until
	// one works; a proxy fails only when every one fails. At least one, unless
	// ExitIPURL is set, which then is what is fetched.
	URLs []string
	// Interval between the starts of two probes. 0 is DefaultInterval.
	Interval time.Duration
	// Timeout of a whole probe, all URLs together. 0 is DefaultTimeout.
	Timeout time.Duration
	// Successes in a row that make a critical proxy pass. 0 is DefaultSuccesses.
	Successes int
	// Failures in a row that make a passing proxy critical. 0 is DefaultFailures.
	Failures int
	// CAFile is a PEM file of certificates that are trusted beside those of the
	// system. It is read again when it changes. Empty is none.
	CAFile string
	// ExitIPURL answers with the address that the request came from, as plain
	// text or JSON. Empty leaves the exit address unknown.
	ExitIPURL string
}

// WithDefaults is the configuration with every zero value replaced.
func (c Config) WithDefaults() Config {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Successes == 0 {
		c.Successes = DefaultSuccesses
	}
	if c.Failures == 0 {
		c.Failures = DefaultFailures
	}
	return c
}

// Validate checks the configuration after its defaults are filled in. All
// problems are told at once, each with the key, the value and what is expected.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var problems []error
	complain := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}
	if len(c.URLs) == 0 && c.ExitIPURL == "" {
		complain("urls: is empty: want at least one http or https URL to fetch through the proxy")
	}
	for i, raw := range c.URLs {
		if _, err := parseURL(raw); err != nil {
			complain("urls[%d]: %w", i, err)
		}
	}
	if c.ExitIPURL != "" {
		if _, err := parseURL(c.ExitIPURL); err != nil {
			complain("exit_ip_url: %w", err)
		}
	}
	if c.Interval < minInterval {
		complain("interval: %v: want at least %v", c.Interval, minInterval)
	}
	if c.Timeout < 0 {
		complain("timeout: %v: want a positive duration", c.Timeout)
	}
	if c.Successes < 0 {
		complain("successes: %d: want at least 1", c.Successes)
	}
	if c.Failures < 0 {
		complain("failures: %d: want at least 1", c.Failures)
	}
	return errors.Join(problems...)
}

// CheckURL says what is wrong with a URL that is to be fetched through a proxy,
// if anything is: nil for what New takes.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// parseURL accepts what can be fetched through a forward proxy. The error shows
// the URL without its credentials.
func parseURL(raw string) (*url.URL, error) {
	parsed, err := url.Parse(raw)
	if err != nil {
		// url.Error repeats the whole input, which may hold a password.
		var cause *url.Error
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, fmt.Errorf("is not a URL: %w", err)
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("%q: scheme %q: want http or https", parsed.Redacted(), parsed.Scheme)
	}
	if parsed.Hostname() == "" {
		return nil, fmt.Errorf("%q: has no host: want https://host/path", parsed.Redacted())
	}
	if port := parsed.Port(); strings.HasSuffix(parsed.Host, ":") || port != "" && !validPort(port) {
		return nil, fmt.Errorf("%q: port %q: want 1 to 65535", parsed.Redacted(), port)
	}
	parsed.Fragment = ""
	return parsed, nil
}

// Proxy is the endpoint that is probed.
type Proxy struct {
	// Host is a DNS name or an IP address, without brackets.
	Host string
	// Port is between 1 and 65535.
	Port int
	// Username for Basic authentication; empty together with Password for none.
	Username string
	// Password for Basic authentication.
	Password string
}

// String is the address without the credentials.
func (p Proxy) String() string { return p.address() }

// GoString is String, so that %#v can't leak the password.
func (p Proxy) GoString() string { return p.address() }

func (p Proxy) validate() error {
	var problems []error
	if _, err := netip.ParseAddr(p.Host); err != nil {
		if !httpguts.ValidHostHeader(p.Host) || p.Host == "" || strings.ContainsAny(p.Host, ":/@[] ") {
			problems = append(problems, fmt.Errorf("proxy host %q: want a DNS name or an IP address without brackets", p.Host))
		}
	}
	if p.Port < 1 || p.Port > 65535 {
		problems = append(problems, fmt.Errorf("proxy port %d: want 1 to 65535", p.Port))
	}
	if err := checkCredentials(p.Username); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// checkCredentials refuses what Basic authentication can't carry (RFC 7617).
func checkCredentials(username string) error {
	if strings.Contains(username, ":") {
		return errors.New("proxy username: contains a colon, which Basic authentication can't carry")
	}
	return nil
}
