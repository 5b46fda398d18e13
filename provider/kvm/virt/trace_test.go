package virt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

// locked is a buffer that a logger and a test may share.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// lines are the log's lines with the message, as fields.
func (l *locked) lines(t *testing.T, message string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []map[string]any
	scanner := bufio.NewScanner(bytes.NewReader(l.b.Bytes()))
	for scanner.Scan() {
		var line map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			t.Fatalf("log line %q: %v", scanner.Text(), err)
		}
		if line["@message"] == message {
			lines = append(lines, line)
		}
	}
	return lines
}

// local are the methods that make no call.
var local = []string{"Name", "Close"}

// Every method of Host is called against a daemon that counts requests. A
// call that is added without its trace makes the counts differ.
func TestEveryCallIsTraced(t *testing.T) {
	hostType := reflect.TypeFor[*Host]()
	public := reflect.TypeFor[*libvirt.Libvirt]()
	for i := range hostType.NumMethod() {
		method := hostType.Method(i)
		if slices.Contains(local, method.Name) {
			continue
		}
		// Once with every call answered, as far as zeros are an answer, and
		// once with every call failing: both ways must be traced.
		for _, mode := range []string{"answer", "fail"} {
			t.Run(method.Name+"/"+mode, func(t *testing.T) {
				d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
					if p.kind != 0 {
						return d.finish(conn, p)
					}
					if mode == "fail" {
						d.fail(conn, p, libvirt.ErrNoSupport, "not here")
					} else {
						d.reply(conn, p, make([]byte, 256))
						if p.procedure == procDownload {
							d.write(conn, p, 3, 0, nil)
						}
					}
					return true
				})
				var log locked
				invoke(t, d.host(t, &log), method)
				lines := log.lines(t, "libvirt call")
				if len(lines) == 0 || len(lines) != d.seen() {
					t.Errorf("%d requests reached the daemon, %d lines tell of them: %v", d.seen(), len(lines), lines)
				}
				for _, line := range lines {
					rpc, _ := line["rpc"].(string)
					_, known := public.MethodByName(rpc)
					if !known && rpc != "DomainQemuAgentCommand" {
						t.Errorf("rpc %q is not a name in libvirt's API", rpc)
					}
					if line["@level"] != "debug" || line["duration"] == nil || line["host"] != "a" {
						t.Errorf("line without its level, host or duration: %v", line)
					}
					if mode == "fail" && line["code"] != "ErrNoSupport" {
						t.Errorf("line without the error's code name: %v", line)
					}
				}
			})
		}
	}
}

func invoke(t *testing.T, h *Host, method reflect.Method) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	arguments := []reflect.Value{reflect.ValueOf(h), reflect.ValueOf(ctx)}
	for i := 2; i < method.Type.NumIn(); i++ {
		switch kind := method.Type.In(i); {
		case kind.Kind() == reflect.Interface:
			arguments = append(arguments, reflect.ValueOf(strings.NewReader("content")))
		default:
			arguments = append(arguments, reflect.Zero(kind))
		}
	}
	method.Func.Call(arguments)
}

func TestDocumentsAreTracedAndNothingElse(t *testing.T) {
	d := newDaemon(t, func(d *daemon, conn net.Conn, p packet) bool {
		d.fail(conn, p, libvirt.ErrXMLError, "bad")
		return true
	})
	var log locked
	h := d.host(t, &log)
	_, _ = h.DefineDomain(t.Context(), "<domain>marker</domain>") // the daemon refuses it
	_, _ = h.Agent(t.Context(), Domain{Name: "eg-x"}, `{"secret":"hush"}`, 0)
	_ = h.Upload(t.Context(), "p", "v", strings.NewReader("hush"))
	if documents := log.lines(t, "libvirt document"); len(documents) != 1 || documents[0]["@level"] != "trace" {
		t.Errorf("documents in the log: %v, want the domain's at trace level", documents)
	}
	for _, line := range log.lines(t, "libvirt call") {
		if strings.Contains(line["rpc"].(string), "marker") || strings.Contains(strings.Join(values(line), " "), "marker") {
			t.Errorf("the XML is in a debug line: %v", line)
		}
	}
	if strings.Contains(log.b.String(), "hush") {
		t.Error("a command or an upload's content is in the log")
	}
}

func values(line map[string]any) []string {
	var all []string
	for _, v := range line {
		if s, ok := v.(string); ok {
			all = append(all, s)
		}
	}
	return all
}
