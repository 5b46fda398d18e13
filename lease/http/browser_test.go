package http_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// browser is a page in a real headless Chromium, driven over the pipe of its
// DevTools protocol (chromedevtools.github.io/devtools-protocol).
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	session string
	last    int
}

// browserPatience bounds a test's whole conversation with its browser.
const browserPatience = 2 * time.Minute

// openPage starts a Chromium that shows the URL.
func openPage(t *testing.T, url string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("no chromium: make deps, or apt-get install chromium")
	}
	toRead, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.MkdirTemp("", "egress-page-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), browserPatience)
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--user-data-dir="+profile, "--window-size=1280,900", "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toRead, toWrite} // 3 and 4, as the protocol wants
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toRead.Close(), toWrite.Close()
	b := &browser{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20)}
	t.Cleanup(func() {
		b.call("Browser.close", nil)
		_ = in.Close()
		_ = cmd.Wait() // it was told to end; a kill at the timeout is no failure
		_ = out.Close()
		cancel()
		// Its other processes may live a moment longer, and write to the profile.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for range 50 {
			if os.RemoveAll(profile) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	target := b.call("Target.createTarget", map[string]any{"url": url})
	session := b.call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})
	b.session, _ = session["sessionId"].(string)
	return b
}

// call makes one call and waits for its answer.
func (b *browser) call(method string, params map[string]any) map[string]any {
	b.t.Helper()
	b.last++
	message := map[string]any{"id": b.last, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" && method != "Browser.close" {
		message["sessionId"] = b.session
	}
	data, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(data, 0)); err != nil && method != "Browser.close" {
		b.t.Fatalf("%s: the browser is gone: %v", method, err)
	}
	for {
		data, err := b.out.ReadBytes(0)
		if err != nil {
			if method == "Browser.close" {
				return nil
			}
			b.t.Fatalf("%s: the browser is gone: %v", method, err)
		}
		var answer struct {
			ID     int            `json:"id"`
			Result map[string]any `json:"result"`
			Error  any            `json:"error"`
		}
		if err := json.Unmarshal(data[:len(data)-1], &answer); err != nil || answer.ID != b.last {
			continue // an event
		}
		if answer.Error != nil {
			b.t.Fatalf("%s: %v", method, answer.Error)
		}
		return answer.Result
	}
}

// eval gives the value of a JavaScript expression as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	result := b.call("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")", "awaitPromise": true})
	if result["exceptionDetails"] != nil {
		b.t.Fatalf("%s: %v", expression, result["exceptionDetails"])
	}
	value, _ := result["result"].(map[string]any)
	return fmt.Sprint(value["value"])
}

// until waits for the expression to be what is wanted.
func (b *browser) until(expression, want string) {
	b.t.Helper()
	deadline := time.Now().Add(browserPatience / 2)
	for {
		got := b.eval(expression)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is %q, want %q\n%s", expression, got, want, b.eval("document.body.innerText"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// key presses and releases a key, such as "Tab", "Enter" or "a".
func (b *browser) key(name string, modifiers int) {
	b.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}
	event := map[string]any{"type": "rawKeyDown", "key": name, "code": name, "windowsVirtualKeyCode": codes[name], "modifiers": modifiers}
	if len(name) == 1 {
		event["type"], event["text"] = "keyDown", name
		delete(event, "code")
	}
	if name == "Enter" {
		event["type"], event["text"] = "keyDown", "\r"
	}
	b.call("Input.dispatchKeyEvent", event)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "windowsVirtualKeyCode": codes[name]})
}

func (b *browser) typeText(text string) {
	b.t.Helper()
	for _, letter := range text {
		b.key(string(letter), 0)
	}
}

// look sets the width of the window and the person's colour scheme.
func (b *browser) look(width int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
	b.call("Emulation.setScrollbarsHidden", map[string]any{"hidden": true})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}})
}

// picture writes a picture of the whole page, when EGRESS_SCREENSHOT names a file
// to put it beside: suffix goes before the extension.
func (b *browser) picture(suffix string) {
	b.t.Helper()
	path := os.Getenv("EGRESS_SCREENSHOT")
	if path == "" {
		return
	}
	shot := b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true})
	data, err := base64.StdEncoding.DecodeString(fmt.Sprint(shot["data"]))
	if err != nil || len(data) == 0 {
		b.t.Fatalf("no picture: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	extension := filepath.Ext(path)
	if err := os.WriteFile(path[:len(path)-len(extension)]+suffix+extension, data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
