package dial

import (
	"errors"
	"net"
	"os"
	"slices"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egress-proxies/egress/provider"
)

// clientConfig reads the key and the known hosts. It is called for every new
// connection, so that a rotated file works without a restart. A missing file
// is transient, since it may still be delivered; one that can't be parsed
// stays wrong until a person changes it.
func clientConfig(t Target) (*ssh.ClientConfig, error) {
	pem, err := os.ReadFile(t.KeyFile)
	if err != nil {
		return nil, fail(provider.SSHMaterialUnavailable, provider.Transientf("key_file: %w", err))
	}
	signer, err := ssh.ParsePrivateKey(pem)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fail(provider.SSHMaterialUnavailable, provider.Permanentf(
			"key_file %s: the key has a passphrase: want one without, readable by Nomad alone", t.KeyFile))
	case err != nil:
		return nil, fail(provider.SSHMaterialUnavailable, provider.Permanentf("key_file %s: not a private key in PEM form: %w", t.KeyFile, err))
	}
	config := &ssh.ClientConfig{
		User: t.Address.User,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
	}
	if t.InsecureHostKey {
		config.HostKeyCallback = ssh.InsecureIgnoreHostKey()
		return config, nil
	}
	verify, err := knownhosts.New(t.KnownHostsFile)
	var pathError *os.PathError
	switch {
	case errors.As(err, &pathError):
		return nil, fail(provider.SSHMaterialUnavailable, provider.Transientf("known_hosts_file: %w", err))
	case err != nil:
		return nil, fail(provider.SSHMaterialUnavailable, provider.Permanentf("known_hosts_file %s: %w", t.KnownHostsFile, err))
	}
	config.HostKeyCallback = verify
	config.HostKeyAlgorithms = knownAlgorithms(verify, t.Address.SSH)
	return config, nil
}

// knownAlgorithms are the signature algorithms of the keys that are known for
// the host. Without it the server may offer a key of another type, which is
// then taken for a changed one. Nil leaves the choice to the library.
func knownAlgorithms(verify ssh.HostKeyCallback, address string) []string {
	var unknown *knownhosts.KeyError
	if !errors.As(verify(address, placeholder{}, nobody{}), &unknown) {
		return nil
	}
	var algorithms []string
	for _, known := range unknown.Want {
		switch kind := known.Key.Type(); kind {
		case ssh.KeyAlgoRSA:
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			algorithms = append(algorithms, kind)
		}
	}
	slices.Sort(algorithms)
	return slices.Compact(algorithms)
}

// placeholder is an address that matches no line by itself.
type placeholder struct{}

func (placeholder) Network() string { return "tcp" }
func (placeholder) String() string  { return net.JoinHostPort("0.0.0.0", "22") }

// nobody is a key that no file lists: asking for it tells which keys are.
type nobody struct{}

func (nobody) Type() string                        { return "none" }
func (nobody) Marshal() []byte                     { return []byte("none") }
func (nobody) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }
