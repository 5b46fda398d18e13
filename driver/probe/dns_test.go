package probe

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers every question with code.
func nameServer(t *testing.T, code dnsmessage.RCode) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var message dnsmessage.Message
			if message.Unpack(buffer[:n]) != nil {
				continue
			}
			message.Response, message.RCode, message.Additionals = true, code, nil
			if packed, err := message.Pack(); err == nil {
				conn.WriteTo(packed, from)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func TestOnceWithAProxyWhoseNameDoesNotResolve(t *testing.T) {
	for code, want := range map[dnsmessage.RCode]string{
		dnsmessage.RCodeNameError:     "dns: the proxy's name proxy.example. does not exist",
		dnsmessage.RCodeServerFailure: "dns: the name servers failed for the proxy's name proxy.example.",
	} {
		prober := newProber(t, Config{URLs: []string{"https://target.example"}}, Proxy{Host: "proxy.example.", Port: 3128})
		prober.dial = (&net.Dialer{Resolver: nameServer(t, code)}).DialContext
		if verdict := prober.Once(t.Context()); verdict.Stage != StageDNS || verdict.Message != want {
			t.Errorf("%v: %+v, want %q", code, verdict, want)
		}
	}
}
