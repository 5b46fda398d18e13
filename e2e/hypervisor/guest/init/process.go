package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// children are the processes that somebody here waits for. Process 1 inherits
// every orphan, so one place must do all the waiting.
var children = struct {
	sync.Mutex // held over start and wait, so that no end is missed
	ends       map[int]chan syscall.WaitStatus
}{ends: map[int]chan syscall.WaitStatus{}}

// reap waits for children and orphans for ever.
func reap() {
	for {
		var status syscall.WaitStatus
		// WNOHANG with a pause, because a start must be able to take the lock.
		children.Lock()
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if end := children.ends[pid]; pid > 0 && end != nil {
			end <- status
			delete(children.ends, pid)
		}
		children.Unlock()
		if err != nil || pid <= 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func start(argv ...string) (chan syscall.WaitStatus, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	children.Lock()
	defer children.Unlock()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Env: os.Environ(), Dir: "/", Files: []*os.File{null, os.Stdout, os.Stdout},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	end := make(chan syscall.WaitStatus, 1)
	children.ends[p.Pid] = end
	return end, nil
}

// run runs a program to its end.
func run(argv ...string) error {
	end, err := start(argv...)
	if err == nil {
		if status := <-end; status.ExitStatus() != 0 {
			err = fmt.Errorf("exit status %d", status.ExitStatus())
		}
	}
	if err != nil {
		say("%v: %v", argv, err)
	}
	return err
}

// keep runs a program and starts it again whenever it ends.
func keep(argv ...string) {
	go func() {
		for {
			_ = run(argv...)
			time.Sleep(time.Second)
		}
	}()
}
