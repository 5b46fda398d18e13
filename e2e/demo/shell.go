package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// show runs a command, printed as a person would type it, and its output as it
// comes.
func (d *demo) show(ctx context.Context, name string, args ...string) error {
	cmd := d.command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	return failed(cmd.Run(), name, args)
}

// capture is show for output that is to be read by the tour too. JSON is
// indented.
func (d *demo) capture(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := d.command(ctx, name, args...)
	cmd.Stderr = os.Stdout
	output, err := cmd.Output()
	var indented bytes.Buffer
	if json.Indent(&indented, bytes.TrimSpace(output), "", "  ") == nil {
		fmt.Println(indented.String())
	} else {
		os.Stdout.Write(output)
	}
	return output, failed(err, name, args)
}

// command prints a command and makes it ready to run: with the program that
// was found, and with the servers' addresses, which the demo has shown.
func (d *demo) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	words := []string{name}
	for _, arg := range args {
		words = append(words, quote(arg))
	}
	fmt.Printf("\n$ %s\n", strings.Join(words, " "))
	program := name
	switch name {
	case "nomad":
		program = d.nomadBin
	case "egress":
		program = d.egressBin
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+d.Nomad.Address, "NO_COLOR=1")
	return cmd
}

// failed names the command in its error.
func failed(err error, name string, args []string) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}

// quote makes a word that a shell takes as it is.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n\"'$\\*?[]{}()<>|&;#~`!") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
