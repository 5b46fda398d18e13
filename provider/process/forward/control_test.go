package forward

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestControlSurvivesNonsense: whoever says something wrong, or nothing, changes
// nothing and keeps nobody else from being heard.
func TestControlSurvivesNonsense(t *testing.T) {
	p := start(t, func(c *Config) { c.Username, c.Password = "u", "p" })
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.control(listener)
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	connect := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		return conn
	}
	want := *p.auth.want.Load()
	for name, text := range map[string]string{
		"nothing": "", "no JSON": "hello\n", "half": `{"username":"x"`, "a list": "[]\n", "empty": "{}\n",
		"colon": `{"username":"a:b","password":"c"}` + "\n", "endless": strings.Repeat(" ", controlSize+1),
	} {
		conn := connect()
		_, _ = conn.Write([]byte(text))
		_ = conn.Close()
		if *p.auth.want.Load() != want {
			t.Fatalf("%s: the credentials changed", name)
		}
	}
	if err := Rotate(connect(), "", ""); err == nil || !strings.Contains(err.Error(), "username") {
		t.Errorf("no username: %v", err)
	}
	if err := Rotate(connect(), "v", "q"); err != nil || *p.auth.want.Load() == want {
		t.Errorf("a good one: %v, changed: %v", err, *p.auth.want.Load() != want)
	}
}
