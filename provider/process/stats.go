package process

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// Stats adds up the process, the processes of its session, and the supervisor.
func (p *Provider) Stats(ctx context.Context, ref provider.Ref) (provider.Stats, error) {
	dir, err := p.find(ctx, ref)
	if err != nil {
		return provider.Stats{}, err
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		return provider.Stats{}, provider.Transientf("read the state of %s: %w", ref.Name, err)
	}
	if snapshot.Phase != supervise.Running {
		return provider.Stats{}, provider.NotFoundf("%s does not run", ref.Name)
	}
	pids := []int{snapshot.Run.Supervisor.PID, snapshot.Run.Child.PID}
	if !snapshot.Plan.Self { // a command may have children
		pids = append(pids, session(snapshot.Run.Child.PID)...)
	}
	stats := provider.Stats{At: time.Now()}
	var ticks uint64
	for _, pid := range pids {
		stat, err := supervise.ReadStat(pid)
		if err != nil {
			continue // ended meanwhile
		}
		ticks += stat.Ticks
		stats.MemoryBytes += memory(pid)
	}
	stats.CPUTime = time.Duration(ticks) * time.Second / supervise.TicksPerSecond
	return stats, nil
}

// session lists the other processes of the session that leader began.
func session(leader int) []int {
	pids, err := supervise.Processes()
	if err != nil {
		return nil
	}
	var members []int
	for _, pid := range pids {
		if stat, err := supervise.ReadStat(pid); err == nil && stat.Session == leader && pid != leader {
			members = append(members, pid)
		}
	}
	return members
}

// memory is a process's proportional share: what many instances have in common,
// the binary above all, is counted once between them. 0 when it can't be read.
func memory(pid int) uint64 {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return resident(pid)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && fields[0] == "Pss:" {
			kib, _ := strconv.ParseUint(fields[1], 10, 64)
			return kib << 10
		}
	}
	return resident(pid)
}

// resident is the resident set size.
func resident(pid int) uint64 {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(content))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}
