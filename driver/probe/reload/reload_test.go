package reload

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFileFollowsItsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	parses := 0
	file := NewFile(path, func(content []byte) (string, error) {
		parses++
		if strings.Contains(string(content), "bad") {
			return "", errors.New("is bad")
		}
		return string(content), nil
	})
	replace := func(content string) {
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string, wantOK bool, wantErr string) {
		t.Helper()
		value, ok, err := file.Get()
		if value != want || ok != wantOK || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%q, %v, %v; want %q, %v, %q", value, ok, err, want, wantOK, wantErr)
		}
	}
	expect("", false, "no such file")
	replace("bad")
	expect("", false, path+": is bad")
	replace("one")
	expect("one", true, "")
	expect("one", true, "")
	if parses != 2 {
		t.Errorf("parsed %d times, want 2: an unchanged file is not read again", parses)
	}
	replace("two")
	expect("two", true, "")
	replace("bad")
	expect("two", true, "is bad")
	expect("two", true, "is bad")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("two", true, "no such file")
	replace("three")
	expect("three", true, "")
}

func TestFileRefusesWhatIsTooLarge(t *testing.T) {
	file := NewFile("/dev/zero", func([]byte) (int, error) { return 0, nil })
	if _, ok, err := file.Get(); ok || err == nil || !strings.Contains(err.Error(), "larger than 8 MiB") {
		t.Errorf("ok %v, error %v", ok, err)
	}
}
