package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// NodeName is the name of the cluster's one node.
const NodeName = "node1"

// Zone is the node's label topology.kubernetes.io/zone.
const Zone = "rack1"

const nodeLog = "node.log"

// NodeConfig says what the pods of a node can be.
type NodeConfig struct {
	// Images are what a pod may name as its image.
	Images map[string]Image
	// Pull is asked before an image is used; what it gives is why it can't be
	// had. nil has every image of Images.
	Pull func(ctx context.Context, image string) error
	// Bind binds every pod to the node, where there is no scheduler.
	Bind bool
	// Linger is how long a deleted pod stays after its process has ended.
	Linger time.Duration
}

// Node is a kubelet that knows as much as a proxy needs: a pod is a process on
// a loopback address of its own, which sees its Secrets and ConfigMaps as files.
type Node struct {
	config NodeConfig
	c      *Cluster
	dir    string
	log    *os.File        // what all pods printed, for a look after a failure
	ctx    context.Context // of everything that the node does
	cancel context.CancelFunc
	logs   *logServer
	done   sync.WaitGroup

	mu   sync.Mutex // guards pods
	pods map[types.UID]*worker
}

// StartNode registers the node and begins to run what is bound to it.
func (c *Cluster) StartNode(ctx context.Context, config NodeConfig) (_ *Node, err error) {
	n := &Node{config: config, c: c, dir: filepath.Join(c.Dir, "node"), pods: make(map[types.UID]*worker)}
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return nil, err
	}
	if n.log, err = os.OpenFile(filepath.Join(c.Dir, nodeLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return nil, err
	}
	if n.logs, err = serveLogs(n); err != nil {
		return nil, err
	}
	if err := n.register(ctx); err != nil {
		return nil, err
	}
	return n, n.watch()
}

// Close ends the node and its pods' processes. What the API server knows of
// them stays.
func (n *Node) Close() error {
	n.cancel()
	n.done.Wait()
	var err error
	if n.logs != nil {
		err = n.logs.close()
	}
	if n.log != nil {
		err = errors.Join(err, n.log.Close())
	}
	return err
}

// register makes the Node object, with room for whatever a test asks.
func (n *Node) register(ctx context.Context) error {
	port, err := strconv.ParseInt(n.logs.port, 10, 32)
	if err != nil {
		return err
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("500"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	nodes := n.c.API.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{
		corev1.LabelHostname: NodeName, corev1.LabelTopologyZone: Zone,
	}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = nodes.Get(ctx, NodeName, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	node.Status = corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}},
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.c.address}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// watch follows the pods of the cluster until the node ends.
func (n *Node) watch() error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.c.API, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		if !n.config.Bind {
			options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", NodeName).String()
		}
	}))
	informer := factory.Core().V1().Pods().Informer()
	see := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			n.see(pod)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				n.drop(pod.UID)
			}
		},
	}); err != nil {
		return err
	}
	n.done.Go(func() { factory.Start(n.ctx.Done()); factory.Shutdown() })
	return nil
}

// see gives a pod's news to its worker, which begins with the first.
func (n *Node) see(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w, known := n.pods[pod.UID]
	if !known {
		if pod.Spec.NodeName == "" {
			n.done.Go(func() { n.bind(pod) })
			return
		}
		ctx, cancel := context.WithCancel(n.ctx)
		w = &worker{n: n, pod: pod, cancel: cancel, deleted: make(chan int64, 1), output: newOutput(), orders: make(chan End, 1)}
		n.pods[pod.UID] = w
		n.done.Go(func() { w.run(ctx) })
	}
	if pod.DeletionTimestamp != nil {
		select {
		case w.deleted <- *pod.DeletionGracePeriodSeconds:
		default: // it knows
		}
	}
}

// drop ends the process of a pod that is gone from the API server.
func (n *Node) drop(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w, known := n.pods[uid]; known {
		w.cancel()
		delete(n.pods, uid)
	}
}

func (n *Node) bind(pod *corev1.Pod) {
	err := n.c.API.CoreV1().Pods(pod.Namespace).Bind(n.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: NodeName},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && n.ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "%s: bind pod %s: %v\n", NodeName, pod.Name, err)
	}
}

// find is the worker of a pod by its name.
func (n *Node) find(namespace, name string) (*worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.pods {
		if w.pod.Namespace == namespace && w.pod.Name == name {
			return w, nil
		}
	}
	return nil, fmt.Errorf("%s has no pod %s/%s", NodeName, namespace, name)
}

// End is how a pod ends by something other than its own doing.
type End struct {
	// Reason and Message are those of the pod ("Evicted"), or with Container
	// those of its container ("OOMKilled").
	Reason, Message string
	Container       bool
}

// End kills a pod's process and tells why.
func (n *Node) End(namespace, name string, end End) error {
	w, err := n.find(namespace, name)
	if err != nil {
		return err
	}
	select {
	case w.orders <- end:
		return nil
	default:
		return fmt.Errorf("pod %s/%s is ending already", namespace, name)
	}
}
