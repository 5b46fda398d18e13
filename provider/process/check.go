package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// minFreeBytes is what the state directory's disk must have free: the output of
// some instances and their records.
const minFreeBytes = 64 << 20

// Check says whether an instance could be started on this node.
func (p *Provider) Check(ctx context.Context) []provider.Verdict {
	start := time.Now()
	verdict := provider.Verdict{Target: Zone, Facts: map[string]string{}}
	if err := ctx.Err(); err != nil {
		verdict.Reason, verdict.Message = provider.Timeout, "no time was left for the check"
		return []provider.Verdict{verdict}
	}
	if free, ok := memoryAvailable(); ok {
		verdict.Facts["memory_available_mib"] = strconv.FormatUint(free>>20, 10)
	}
	verdict.Reason, verdict.Message = p.check(verdict.Facts)
	verdict.Ready = verdict.Reason == provider.Reachable
	verdict.Latency = time.Since(start)
	return []provider.Verdict{verdict}
}

func (p *Provider) check(facts map[string]string) (provider.Reason, string) {
	if err := p.writable(); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return provider.PoolNearlyFull, fmt.Sprintf("the disk of %s is full: free some space", p.dir)
		}
		return provider.Forbidden, fmt.Sprintf("%v: make the state directory writable for the plugin's user", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(p.dir, &disk); err == nil {
		free := disk.Bavail * uint64(disk.Bsize)
		facts["state_dir_available_mib"] = strconv.FormatUint(free>>20, 10)
		if free < minFreeBytes {
			return provider.PoolNearlyFull, fmt.Sprintf("%s has less than %d MiB free: free some space", p.dir, minFreeBytes>>20)
		}
	}
	account, err := p.account(provider.Spec{})
	if err != nil {
		return provider.Forbidden, fmt.Sprintf("%v: make the account or change the provider's user", err)
	}
	if err := executableFor(account); err != nil {
		return provider.Forbidden, fmt.Sprintf("the egress binary: %v: make it executable for the account of the proxies (chmod 755)", err)
	}
	return provider.Reachable, "instances can be started on this node"
}

// executableFor looks at the permission bits as the kernel would.
func executableFor(account *supervise.Account) error {
	var binary unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &binary); err != nil {
		return err
	}
	if account == nil {
		return unix.Access("/proc/self/exe", unix.X_OK)
	}
	bit := uint32(0o001)
	switch {
	case binary.Uid == account.UID:
		bit = 0o100
	case binary.Gid == account.GID || slices.Contains(account.Groups, binary.Gid):
		bit = 0o010
	}
	if binary.Mode&bit == 0 {
		return fmt.Errorf("mode %04o does not let uid %d execute it", binary.Mode&0o7777, account.UID)
	}
	return nil
}

// writable makes and removes a file.
func (p *Provider) writable() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(p.dir, ".check-")
	if err != nil {
		return err
	}
	_, err = file.WriteString("writable")
	return errors.Join(err, file.Close(), os.Remove(filepath.Clean(file.Name())))
}

// memoryAvailable is the kernel's estimate of what a new process can have.
func memoryAvailable() (uint64, bool) {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
