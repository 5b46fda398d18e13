package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// again is how long the node waits before it tries something once more; for a
// pod that doesn't start the wait doubles up to againMax.
const (
	again    = 200 * time.Millisecond
	againMax = 3 * time.Second
)

// worker runs one pod from its first sight to its end.
type worker struct {
	n       *Node
	pod     *corev1.Pod // as it was first seen; its spec doesn't change
	cancel  context.CancelFunc
	deleted chan int64 // the grace that it gets, in seconds
	orders  chan End
	output  *output

	cmd     *exec.Cmd
	exited  chan struct{} // closed when cmd has ended
	address string
}

// run ends with the pod, or with the node.
func (w *worker) run(ctx context.Context) {
	defer func() {
		w.kill()
		if w.cmd == nil {
			w.output.close()
		}
	}()
	deleted, grace := w.starting(ctx)
	if ctx.Err() != nil {
		return
	}
	if !deleted {
		deleted, grace = w.running(ctx)
	}
	if !deleted { // it ended by itself, and stays for a look
		select {
		case grace = <-w.deleted:
		case <-ctx.Done():
			return
		}
	}
	w.stop(ctx, time.Duration(grace)*time.Second)
	if pause(ctx, w.n.config.Linger) == nil {
		w.confirm(ctx)
	}
}

// starting prepares the pod until its process runs; deleted is true when it
// was deleted before.
func (w *worker) starting(ctx context.Context) (deleted bool, grace int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan bool)
	w.n.done.Go(func() { w.start(ctx); close(started) })
	select {
	case <-started:
		return false, 0
	case grace = <-w.deleted:
		cancel()
		<-started
		return true, grace
	}
}

// start tries until the process runs or ctx ends.
func (w *worker) start(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures = min(failures+1, 10) {
		waiting := w.launch(ctx)
		if waiting == nil {
			return
		}
		// A kubelet alternates between the failure and the waiting after it.
		if waiting.Reason == "ErrImagePull" && failures%2 == 1 {
			waiting = &corev1.ContainerStateWaiting{
				Reason:  "ImagePullBackOff",
				Message: fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", w.container().Image, waiting.Message),
			}
		}
		if ctx.Err() == nil {
			w.report(ctx, func(status *corev1.PodStatus) {
				status.Phase, status.ContainerStatuses = corev1.PodPending, w.status(corev1.ContainerState{Waiting: waiting})
			})
		}
		_ = pause(ctx, min(again<<failures, againMax))
	}
}

// launch starts the process, or says what it waits for.
func (w *worker) launch(ctx context.Context) *corev1.ContainerStateWaiting {
	name := w.container().Image
	image, known := w.n.config.Images[name]
	var err error
	if w.n.config.Pull != nil {
		err = w.n.config.Pull(ctx, name)
	}
	if err == nil && !known {
		err = fmt.Errorf("failed to resolve reference %q: %s: not found", name, name)
	}
	if err != nil {
		return &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: err.Error()}
	}
	sandbox := filepath.Join(w.n.dir, string(w.pod.UID))
	mounts, err := w.volumes(ctx, sandbox)
	if err != nil {
		return &corev1.ContainerStateWaiting{Reason: "ContainerCreating", Message: err.Error()}
	}
	if w.address, err = w.freeAddress(); err != nil {
		return &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: err.Error()}
	}
	cmd, err := image(Container{Container: w.container(), Address: w.address, Dir: sandbox, Mounts: mounts})
	if err == nil {
		err = w.exec(cmd, sandbox)
	}
	if err != nil {
		return &corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: err.Error()}
	}
	return nil
}

// exec starts a command under the pod's account, with its output in the log.
func (w *worker) exec(cmd *exec.Cmd, sandbox string) error {
	cmd.Dir = sandbox
	for _, env := range w.container().Env {
		cmd.Env = append(cmd.Env, env.Name+"="+env.Value)
	}
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = write.Close() }()
	if user := w.pod.Spec.SecurityContext; os.Getuid() == 0 && user != nil && user.RunAsUser != nil {
		id := int(*user.RunAsUser)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
		// As runc does: who opens /dev/stdout must be able to.
		if err := write.Chown(id, id); err != nil {
			_ = read.Close()
			return err
		}
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		_ = read.Close()
		return err
	}
	exited := make(chan struct{})
	w.n.done.Go(func() {
		_ = cmd.Wait()
		close(exited)
	})
	w.n.done.Go(func() { // Ends with the last process that holds the pipe.
		_, _ = io.Copy(io.MultiWriter(w.output, w.n.log), read)
		_ = read.Close()
		w.output.close()
	})
	w.cmd, w.exited = cmd, exited
	return nil
}

// running tells of the process until it ends, by itself or by order.
func (w *worker) running(ctx context.Context) (deleted bool, grace int64) {
	began := metav1.Now()
	w.report(ctx, func(status *corev1.PodStatus) {
		status.Phase, status.PodIP, status.PodIPs = corev1.PodRunning, w.address, []corev1.PodIP{{IP: w.address}}
		status.HostIP, status.StartTime = w.n.c.address, &began
		status.ContainerStatuses = w.status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}})
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	})
	var end End
	select {
	case <-ctx.Done():
		return false, 0
	case grace = <-w.deleted:
		return true, grace
	case <-w.exited:
	case end = <-w.orders:
		w.kill()
	}
	w.report(ctx, func(status *corev1.PodStatus) { w.ended(status, end) })
	return false, 0
}

// ended is the status of a pod whose process has ended.
func (w *worker) ended(status *corev1.PodStatus, end End) {
	last := &corev1.ContainerStateTerminated{ExitCode: int32(w.cmd.ProcessState.ExitCode()), Reason: "Error", FinishedAt: metav1.Now()}
	if was, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && was.Signaled() {
		last.ExitCode = 128 + int32(was.Signal())
	}
	status.Phase = corev1.PodFailed
	if w.container().TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && last.ExitCode != 0 {
		// A kubelet gives the last 80 lines or 2 KiB.
		text, _ := w.output.from(0)
		last.Message = string(text[max(0, len(text)-2048):])
	}
	switch {
	case end.Container:
		last.Reason, last.Message = end.Reason, end.Message
	case end.Reason != "":
		status.Reason, status.Message = end.Reason, end.Message
	case last.ExitCode == 0:
		status.Phase, last.Reason = corev1.PodSucceeded, "Completed"
	}
	status.ContainerStatuses = w.status(corev1.ContainerState{Terminated: last})
}

// stop ends the process with SIGTERM, and with SIGKILL after the grace.
func (w *worker) stop(ctx context.Context, grace time.Duration) {
	if w.cmd == nil {
		return
	}
	_ = syscall.Kill(w.cmd.Process.Pid, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-w.exited:
	case <-timer.C:
	case <-ctx.Done():
	}
	w.kill()
}

// kill ends the process and its children. Its id can't be another's: it is
// waited for elsewhere, and signalled only before.
func (w *worker) kill() {
	if w.cmd == nil {
		return
	}
	select {
	case <-w.exited:
	default:
		_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
		<-w.exited
	}
}

// confirm tells the API server that nothing of the pod runs any more.
func (w *worker) confirm(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.n.c.API.CoreV1().Pods(w.pod.Namespace).Delete(ctx, w.pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(w.pod.UID)),
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		_ = pause(ctx, again)
	}
}

// errReplaced is a pod of the name that isn't the worker's.
var errReplaced = errors.New("another pod has the name")

// report changes the pod's status, and tries until it could or ctx ends.
func (w *worker) report(ctx context.Context, change func(*corev1.PodStatus)) {
	for ctx.Err() == nil {
		err := w.update(ctx, change)
		if err == nil || apierrors.IsNotFound(err) || errors.Is(err, errReplaced) {
			return
		}
		_ = pause(ctx, again)
	}
}

func (w *worker) update(ctx context.Context, change func(*corev1.PodStatus)) error {
	pods := w.n.c.API.CoreV1().Pods(w.pod.Namespace)
	pod, err := pods.Get(ctx, w.pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pod.UID != w.pod.UID {
		return errReplaced
	}
	change(&pod.Status)
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (w *worker) container() corev1.Container { return w.pod.Spec.Containers[0] }

func (w *worker) status(state corev1.ContainerState) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: w.container().Name, Image: w.container().Image, State: state, Ready: state.Running != nil, Started: new(state.Running != nil),
	}}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
