package hypervisor

import (
	"os"
	"testing"
	"time"
)

func TestGuestIsBuiltOnce(t *testing.T) {
	first, err := Guest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	second, err := Guest(t.Context())
	if err != nil || second != first {
		t.Fatalf("%s, then %s, %v", first, second, err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the second call took %s: it was built again", took)
	}
	header := make([]byte, 4)
	f, err := os.Open(first)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Read(header); err != nil || string(header) != "QFI\xfb" {
		t.Errorf("%s begins with %q, %v; want qcow2", first, header, err)
	}
}
