package kubernetes

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// User is somebody whom the API server knows.
type User string

// The users. EgressUser has in each namespace of Namespace the rights that its
// caller gives; Stranger is known and may do nothing; Nobody isn't known.
const (
	AdminUser  User = "admin"
	EgressUser User = "egress"
	NodeUser   User = "system:node:" + NodeName
	Stranger   User = "stranger"
	Nobody     User = "nobody"
)

// The files of the scratch directory that the API server reads.
const (
	tokenFile = "tokens.csv"
	keyFile   = "service-accounts.key"
)

var groups = map[User]string{AdminUser: "system:masters", EgressUser: "e2e", NodeUser: "system:nodes", Stranger: "e2e"}

// credentials makes a token for each user and the key of service accounts.
func (c *Cluster) credentials() error {
	c.tokens = map[User]string{Nobody: rand.Text()}
	var lines strings.Builder
	for user, group := range groups {
		c.tokens[user] = rand.Text()
		fmt.Fprintf(&lines, "%s,%s,%s,%s\n", c.tokens[user], user, user, group)
	}
	if err := os.WriteFile(filepath.Join(c.Dir, tokenFile), []byte(lines.String()), 0o600); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(filepath.Join(c.Dir, keyFile), block, 0o600)
}

// Address is the host and port of the API server.
func (c *Cluster) Address() string { return net.JoinHostPort(c.address, c.port) }

// Kubeconfig writes a kubeconfig of the user, whose context is in the namespace,
// and gives its path.
func (c *Cluster) Kubeconfig(user User, namespace string) (string, error) {
	return c.kubeconfig(user, namespace, "https://"+c.Address())
}

func (c *Cluster) kubeconfig(user User, namespace, server string) (string, error) {
	authority := ""
	if strings.HasPrefix(server, "https:") {
		authority = fmt.Sprintf("certificate-authority: %q", filepath.Join(c.Dir, "certs", "apiserver.crt"))
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
  - name: e2e
    cluster:
      server: %q
      %s
users:
  - name: user
    user:
      token: %q
contexts:
  - name: e2e
    context:
      cluster: e2e
      user: user
      namespace: %q
current-context: e2e
`, server, authority, c.tokens[user], namespace)
	file, err := os.CreateTemp(c.Dir, strings.ReplaceAll(string(user), ":", "-")+"-*.kubeconfig")
	if err != nil {
		return "", err
	}
	if _, err := file.WriteString(text); err != nil {
		_ = file.Close()
		return "", err
	}
	return file.Name(), file.Close()
}

// connect makes the admin's client, once the server has made its certificate.
func (c *Cluster) connect() error {
	if _, err := os.Stat(filepath.Join(c.Dir, "certs", "apiserver.crt")); err != nil {
		return err
	}
	path, err := c.Kubeconfig(AdminUser, "default")
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	c.Admin, c.API = config, api
	return nil
}

// Namespace makes a namespace whose pods must keep to the pod security level
// "restricted", with what a controller-manager would put in it, and gives
// EgressUser the rights there that the Role in the file has.
func (c *Cluster) Namespace(ctx context.Context, name, roleFile string) error {
	rights, err := rights(roleFile)
	if err != nil {
		return err
	}
	core, options := c.API.CoreV1(), metav1.CreateOptions{}
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, options); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: "default"}
	if _, err := core.ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, options); err != nil {
		return err
	}
	meta.Name = string(EgressUser)
	if _, err := c.API.RbacV1().Roles(name).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rights}, options); err != nil {
		return err
	}
	_, err = c.API.RbacV1().RoleBindings(name).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: string(EgressUser)}},
	}, options)
	return err
}

// rights are the rules of the one Role among the documents of a file.
func rights(file string) ([]rbacv1.PolicyRule, error) {
	text, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }()
	for documents := yaml.NewYAMLOrJSONDecoder(text, 4096); ; {
		var role rbacv1.Role
		if err := documents.Decode(&role); err != nil {
			return nil, fmt.Errorf("look for a Role in %s: %w", file, err)
		}
		if role.Kind == "Role" {
			return role.Rules, nil
		}
	}
}
