package probe

import (
	"strings"
	"testing"
	"time"
)

func TestNewNamesTheMistake(t *testing.T) {
	good := Config{URLs: []string{"https://target.example/"}}
	proxy := Proxy{Host: "192.0.2.1", Port: 3128}
	for want, test := range map[string]struct {
		config Config
		proxy  Proxy
	}{
		"urls: is empty":                         {Config{}, proxy},
		`urls[1]: "ftp://x": scheme "ftp"`:       {Config{URLs: []string{"http://x", "ftp://x"}}, proxy},
		`urls[0]: "https:///x": has no host`:     {Config{URLs: []string{"https:///x"}}, proxy},
		`port "70000": want 1 to 65535`:          {Config{URLs: []string{"https://x:70000"}}, proxy},
		`exit_ip_url: "x": scheme ""`:            {Config{ExitIPURL: "x"}, proxy},
		"urls[0]: is not a URL":                  {Config{URLs: []string{"https://u:secret@x:y/"}}, proxy},
		"interval: 1ms: want at least 100ms":     {Config{URLs: good.URLs, Interval: time.Millisecond}, proxy},
		"timeout: -1s: want a positive duration": {Config{URLs: good.URLs, Timeout: -time.Second}, proxy},
		"failures: -1: want at least 1":          {Config{URLs: good.URLs, Failures: -1}, proxy},
		`proxy host "[::1]": want a DNS name`:    {good, Proxy{Host: "[::1]", Port: 1}},
		"proxy port 0: want 1 to 65535":          {good, Proxy{Host: "::1"}},
		"proxy username: contains a colon":       {good, Proxy{Host: "::1", Port: 1, Username: "secret:x"}},
	} {
		_, err := New(test.config, test.proxy)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
