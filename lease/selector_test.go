package lease

import (
	"errors"
	"testing"
)

func TestSelectorErrorsShowWhere(t *testing.T) {
	for text, pos := range map[string]int{
		"=DE":             0,
		"country=":        8,
		"country=DE,":     11,
		"country=DE zone": 11,
		"!":               1,
		"a in b":          5,
		"a in (b":         7,
		"a in (b,)":       8,
		"a not b":         7,
		"a near b":        2,
		"latency<fast":    8,
		"latency<NaN":     8,
		`zone="open`:      5,
		"a=b;c=d":         3,
		"a<>1":            2,
		"x in ()":         6,
	} {
		_, err := ParseSelector(text)
		var field *FieldError
		if !errors.As(err, &field) || !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, want a field error", text, err)
			continue
		}
		if field.Pos != pos {
			t.Errorf("%q: at %d, want %d (%v)", text, field.Pos, pos, err)
		}
	}
}

func TestSelectorChooses(t *testing.T) {
	p := proxy("a", "", 1, "country", "DE", "zone", "eu 1", "ms", "120")
	p.Tags = []string{"egress", "ipv6"}
	for text, want := range map[string]bool{
		"":                          true,
		"country=DE":                true,
		"country==DE":               true,
		" country = DE , ms<200 ":   true,
		"country=PL":                false,
		"country!=PL":               true,
		"country!=DE":               false,
		"missing!=x":                true,
		"missing=x":                 false,
		"country in (PL, DE)":       true,
		"country not in (PL,DE)":    false,
		"country notin (PL)":        true,
		`zone="eu 1"`:               true,
		"ms<120":                    false,
		"ms<=120":                   true,
		"ms>119.5":                  true,
		"ms>=121":                   false,
		"country>1":                 false,
		"missing<1":                 false,
		"country":                   true,
		"missing":                   false,
		"!missing":                  true,
		"!country":                  false,
		"ipv6":                      true,
		"!ipv6":                     false,
		"tag=ipv6":                  true,
		"tag!=ipv6":                 false,
		"tag in (x,egress)":         true,
		"country=DE,country=PL":     false,
		"country=DE,!slow,ms < 1e3": true,
	} {
		s, err := ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := s.Matches(p); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestSelectorsWithOneMeaningShareAnIndex(t *testing.T) {
	for _, pair := range [][2]string{
		{"a=1,b=2", "b==2 , a = 1"},
		{"a in (x,y)", "a in ( y , x , x )"},
		{"a in (x)", "a=x"},
		{"a notin (x)", "a!=x"},
		{"a<1.0", "a<1"},
		{`a="x"`, "a=x"},
	} {
		one, err1 := ParseSelector(pair[0])
		two, err2 := ParseSelector(pair[1])
		if err1 != nil || err2 != nil || one.String() != two.String() {
			t.Errorf("%q is %q, %q is %q (%v, %v)", pair[0], one, pair[1], two, err1, err2)
		}
	}
}

func FuzzSelector(f *testing.F) {
	for _, seed := range []string{"", "a=1", "a in (b, c)", `z="q\"x",!y,ms<=1e9`, "a not in (b)", "tag=x", "a=\x00"} {
		f.Add(seed)
	}
	p := proxy("a", "", 1, "a", "1", "ms", "5")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			var field *FieldError
			if !errors.As(err, &field) || field.Pos < 0 || field.Pos > len(text) {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		again, err := ParseSelector(s.String())
		if len(s.String()) <= maxSelector && (err != nil || again.String() != s.String() || again.Matches(p) != s.Matches(p)) {
			t.Fatalf("%q has the form %q, which reads as %q, %v", text, s, again, err)
		}
	})
}

func TestTargetIsNormalised(t *testing.T) {
	for text, want := range map[string][2]string{
		"":                              {"", ""},
		"Example.COM":                   {"example.com", "example.com"},
		"example.com.":                  {"example.com", "example.com"},
		"https://www.example.com/a?b#c": {"www.example.com", "example.com"},
		"http://shop.example.co.uk:80":  {"shop.example.co.uk", "example.co.uk"},
		"example.com:443":               {"example.com", "example.com"},
		"example.com:8443":              {"example.com:8443", "example.com"},
		"bücher.example":                {"xn--bcher-kva.example", "xn--bcher-kva.example"},
		"BÜCHER.example":                {"xn--bcher-kva.example", "xn--bcher-kva.example"},
		"XN--BCHER-KVA.example":         {"xn--bcher-kva.example", "xn--bcher-kva.example"},
		"192.0.2.1":                     {"192.0.2.1", "192.0.2.1"},
		"192.0.2.1:8080":                {"192.0.2.1:8080", "192.0.2.1"},
		"::ffff:192.0.2.1":              {"192.0.2.1", "192.0.2.1"},
		"[2001:DB8::0:1]:443":           {"[2001:db8::1]", "[2001:db8::1]"},
		"2001:db8::1":                   {"[2001:db8::1]", "[2001:db8::1]"},
		"localhost":                     {"localhost", "localhost"},
		"wss://a.github.io/x":           {"a.github.io", "a.github.io"},
	} {
		for i, scope := range []Scope{ScopeHost, ScopeDomain} {
			if got, err := NormalizeTarget(text, scope); err != nil || got != want[i] {
				t.Errorf("%q by %s: %q, %v; want %q", text, scope, got, err, want[i])
			}
		}
	}
	for _, text := range []string{"https://", "ftp://example.com", "user:pw@example.com", "exa mple.com", "a..b", "*.example.com",
		"example.com:99999999", "example.com:0x50", "http://[::1", "-a.example", "https:///path"} {
		if got, err := NormalizeTarget(text, ScopeHost); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %q, %v; want a refusal", text, got, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"", "example.com", "https://EXAMPLE.com:8443/x", "[::1]:80", "bücher.example.", "192.0.2.1", "a:b:c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, scope := range []Scope{ScopeHost, ScopeDomain} {
			got, err := NormalizeTarget(text, scope)
			if err != nil {
				continue
			}
			if again, err := NormalizeTarget(got, scope); err != nil || again != got {
				t.Fatalf("%q by %s is %q, which is %q, %v", text, scope, got, again, err)
			}
		}
	})
}
