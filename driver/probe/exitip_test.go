package probe

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestParseExitIP(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		want string
		err  error
	}{
		"empty":                {"", "", errNoAddress},
		"a page":               {"<html>192.0.2.1</html>", "", errNoAddress},
		"a list":               {"192.0.2.1, 192.0.2.2", "", errManyAddress},
		"broken JSON":          {`{"ip":"192.0.2.1"`, "", errNoAddress},
		"JSON of another kind": {`{"status":"ok"}`, "", errNoAddress},
		"a zone":               {"fe80::1%eth0", "", errUselessExit},
		"unspecified":          {"0.0.0.0", "", errUselessExit},
		"too large":            {strings.Repeat(" ", maxExitBody) + "192.0.2.1", "", errBodyTooLarge},
		"plain":                {"192.0.2.1\n", "192.0.2.1", nil},
		"JSON string":          {`"192.0.2.1"`, "192.0.2.1", nil},
		"JSON object":          {`{"country":"DE","ip":" 192.0.2.1 "}`, "192.0.2.1", nil},
		"IPv4 in IPv6":         {"::ffff:192.0.2.1", "192.0.2.1", nil},
		"IPv6":                 {`{"origin":"2001:0DB8:0:0::1"}`, "2001:db8::1", nil},
	} {
		got, err := parseExitIP([]byte(test.body))
		if !errors.Is(err, test.err) || err == nil && got.String() != test.want {
			t.Errorf("%s: %v, %v; want %s, %v", name, got, err, test.want, test.err)
		}
	}
}

// Case 20: an IPv6 proxy passes, and one address in two spellings is one.
func TestOnceLearnsTheExitAddress(t *testing.T) {
	body := make(chan string, 2)
	good := newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ip" {
			io.WriteString(w, <-body)
		}
	})
	proxy := new(forwarder).start(t, "[::1]:0")
	prober := newProber(t, Config{URLs: []string{good.https}, ExitIPURL: good.http + "/ip", CAFile: good.caFile}, proxy)
	for _, spelling := range []string{"2001:0db8:0000::0001", `{"ip":"2001:DB8::1"}`} {
		body <- spelling
		if verdict := prober.Once(t.Context()); !verdict.OK || verdict.ExitIP != netip.MustParseAddr("2001:db8::1") {
			t.Errorf("%s: %+v", spelling, verdict)
		}
	}
	body <- "sorry"
	verdict := prober.Once(t.Context())
	if !verdict.OK || verdict.ExitIP.IsValid() || verdict.ExitIPProblem != good.http+"/ip: the body holds no IP address" {
		t.Errorf("without an address: %+v", verdict)
	}
	body <- "192.0.2.1"
	alone := newProber(t, Config{ExitIPURL: good.http + "/ip"}, proxy)
	if verdict := alone.Once(t.Context()); !verdict.OK || verdict.ExitIP.String() != "192.0.2.1" {
		t.Errorf("the exit-IP URL alone: %+v", verdict)
	}
}

func FuzzParseExitIP(f *testing.F) {
	for _, seed := range []string{"192.0.2.1", `{"ip":"::ffff:1.2.3.4"}`, `"::1"`, `{"ip":1}`, "1.1.1.1,2.2.2.2", "fe80::1%x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		addr, err := parseExitIP(body)
		if err != nil {
			return
		}
		again, err := parseExitIP([]byte(addr.String()))
		if err != nil || again != addr || addr.Is4In6() || addr.Zone() != "" {
			t.Errorf("%q gives %v, which reads back as %v, %v", body, addr, again, err)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{"", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 407 x\r\n\r\n", opened + "\x16\x03\x01", "HTTP/1.1 100 C\r\n\r\n", "HTTP/1.1 999 \r\n\r\n"} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, sent []byte, https bool) {
		url := map[bool]string{true: "https://target.example/", false: "http://target.example/"}[https]
		proxy := acceptor(t, "127.0.0.1:0", says(string(sent)))
		proxy.Username, proxy.Password = "user", "secret"
		verdict := newProber(t, Config{URLs: []string{url}}, proxy).Once(t.Context())
		if https && verdict.OK {
			t.Fatal("an answer in the clear passed for https")
		}
		if !verdict.OK && !strings.HasPrefix(verdict.Message, string(verdict.Stage)+": ") {
			t.Errorf("message %q of stage %q", verdict.Message, verdict.Stage)
		}
		if len(verdict.Message) > 300 || strings.ContainsAny(verdict.Message, "\r\n\x00") || strings.Contains(verdict.Message, "secret") {
			t.Errorf("message %q", verdict.Message)
		}
	})
}

func BenchmarkOnce(b *testing.B) {
	good := newOrigin(b, hello)
	prober, err := New(Config{URLs: []string{good.https}, CAFile: good.caFile}, new(forwarder).start(b, "127.0.0.1:0"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if verdict := prober.Once(b.Context()); !verdict.OK {
			b.Fatal(verdict)
		}
	}
}
