// Package kube launches proxies as pods of a Kubernetes cluster.
//
// A pod carries the labels of its cluster for selectors, and the whole truth
// about whose it is in annotations, since label values know few characters.
// docs/kubernetes.md is for those who run it.
package kube

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/provider"
)

// Type is the value of `type` that chooses this provider.
const Type = "kube"

// Provider launches pods in one namespace of one cluster.
type Provider struct {
	settings settings
	env      provider.Env
	timing   timing
	client   client
	hub      hub
	checks   checks
	usage    usage
}

var (
	_ provider.Provider    = (*Provider)(nil)
	_ provider.Validator   = (*Provider)(nil)
	_ provider.Stopper     = (*Provider)(nil)
	_ provider.Watcher     = (*Provider)(nil)
	_ provider.Console     = (*Provider)(nil)
	_ provider.Execer      = (*Provider)(nil)
	_ provider.StatsReader = (*Provider)(nil)
	_ provider.Checker     = (*Provider)(nil)
)

// timing is how long things take.
type timing struct {
	again   time.Duration // between two looks where a watch can't be used
	cleanup time.Duration // for removing what a failed start made
	rewatch time.Duration // before a watch that ended is opened again, at first
	longest time.Duration // before a watch that can't be had is tried again, at last
	watch   time.Duration // of one watch; the server ends it then
	overdue time.Duration // how much longer a watch may last before it is taken for stalled
	check   time.Duration // how old a good verdict may be
	rights  time.Duration // how old the knowledge of our rights may be
	stats   time.Duration // how old a reading may be; metrics-server reads every 15 s
}

var defaultTiming = timing{
	again: time.Second, cleanup: 20 * time.Second, rewatch: time.Second, longest: 15 * time.Second,
	watch: 10 * time.Minute, overdue: 30 * time.Second, check: 5 * time.Minute, rights: time.Hour, stats: 30 * time.Second,
}

// New makes a provider of a `type = "kube"` block. It connects to nothing and
// reads no kubeconfig.
func New(config provider.Config, env provider.Env) (provider.Provider, error) {
	settings, err := parse(config.Options)
	if err != nil {
		return nil, err
	}
	return build(settings, env, defaultTiming), nil
}

func build(settings settings, env provider.Env, timing timing) *Provider {
	if env.Logger == nil {
		env.Logger = hclog.NewNullLogger()
	}
	p := &Provider{settings: settings, env: env, timing: timing}
	p.client.settings, p.client.logger = settings, env.Logger
	p.hub.p = p
	return p
}

// Close ends the watches and the connections.
func (p *Provider) Close() error {
	p.hub.close()
	p.client.close()
	return nil
}

// Get answers from the watch while the pod is watched and the watch is alive,
// and asks the API server otherwise.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, provider.Transientf("pod %s: %w", ref.Name, err)
	}
	if instance, ok := p.hub.current(ref.Name); ok {
		return instance, nil
	}
	pod, err := p.pod(ctx, ref.Name)
	if err != nil {
		return provider.Instance{}, err
	}
	return describe(pod), nil
}

// pod asks the API server for our pod of the name.
func (p *Provider) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	api, err := p.client.get()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	pod, err := api.CoreV1().Pods(p.settings.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, translate(err, "get pod %s/%s", p.settings.Namespace, name)
	}
	return pod, p.owned(pod)
}

// owned refuses a pod that another installation, or a person, made.
func (p *Provider) owned(pod *corev1.Pod) error {
	labels, managed := provider.LabelsFromMap(pod.Annotations)
	if managed && labels.Cluster == p.env.Cluster {
		return nil
	}
	return provider.Permanentf("pod %s/%s exists and isn't of the cluster %q: delete it or rename the cluster",
		pod.Namespace, pod.Name, p.env.Cluster)
}

// List gives the pods of the cluster in the namespace. Their Secrets are owned
// by them, so that Kubernetes itself removes one that is left alone.
func (p *Provider) List(ctx context.Context) ([]provider.Instance, error) {
	api, err := p.client.get()
	if err != nil {
		return nil, err
	}
	var all []provider.Instance
	options := metav1.ListOptions{LabelSelector: selector(p.env.Cluster), Limit: 500}
	for {
		page, err := p.page(ctx, api.CoreV1().Pods(p.settings.Namespace), options)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if p.owned(&page.Items[i]) == nil {
				all = append(all, describe(&page.Items[i]))
			}
		}
		if page.Continue == "" {
			return all, nil
		}
		options.Continue = page.Continue
	}
}

// lister is what List needs of the API.
type lister interface {
	List(ctx context.Context, options metav1.ListOptions) (*corev1.PodList, error)
}

func (p *Provider) page(ctx context.Context, pods lister, options metav1.ListOptions) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	page, err := pods.List(ctx, options)
	if err != nil {
		return nil, translate(err, "list the pods of namespace %s", p.settings.Namespace)
	}
	return page, nil
}
