package main

import (
	"bytes"
	"compress/gzip"
	"testing"
)

func TestFormatsOfUserData(t *testing.T) {
	cloud := "#cloud-config\nhostname: h\nruncmd: [ [ a, 1 ], 'b c' ]\nwrite_files:\n- {path: /x, content: y, permissions: '0600'}\n"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(cloud))
	_ = z.Close()
	archive := "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n" +
		"--b\nContent-Type: text/cloud-config\n\n" + cloud +
		"--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\nIyEvYmluL3No\n--b--\n"
	for name, c := range map[string]struct {
		data     string
		scripts  int
		commands int
	}{
		"nothing":      {"", 0, 0},
		"cloud-config": {cloud, 0, 2},
		"gzip":         {zipped.String(), 0, 2},
		"script":       {"#!/bin/sh\ntrue\n", 1, 0},
		"archive":      {archive, 1, 2},
	} {
		got, err := parse([]byte(c.data))
		if err != nil || len(got.scripts) != c.scripts || len(got.Runcmd) != c.commands {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if _, err := parse([]byte("hello")); err == nil {
		t.Error("an unknown format was taken")
	}
}

func TestUserDataReplacesVendorDataKeyByKey(t *testing.T) {
	user := config{Runcmd: []any{"u"}, scripts: [][]byte{[]byte("u")}}
	vendor := config{Runcmd: []any{"v"}, Bootcmd: []any{"v"}, Hostname: "v", scripts: [][]byte{[]byte("v")}}
	got := user.over(vendor)
	if got.Runcmd[0] != "u" || got.Bootcmd[0] != "v" || got.Hostname != "v" || len(got.scripts) != 2 {
		t.Errorf("got %+v", got)
	}
}
