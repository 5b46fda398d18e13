package forward

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

const (
	// controlTime bounds one exchange: both sides are processes of one node.
	controlTime = 5 * time.Second
	// controlSize is ample for a username and a password.
	controlSize = 64 << 10
)

// controlRequest is what comes over the control socket, as JSON.
type controlRequest struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// controlAnswer is what goes back; an empty error is success.
type controlAnswer struct {
	Error string `json:"error,omitempty"`
}

// Rotate tells the proxy at the other end of a control socket what its clients
// must give from now on, and waits until it is so. It closes conn.
func Rotate(conn net.Conn, username, password string) error {
	answer, err := exchange(conn, controlRequest{Username: username, Password: password})
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

func exchange(conn net.Conn, request controlRequest) (answer controlAnswer, err error) {
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return answer, err
	}
	return answer, json.NewDecoder(io.LimitReader(conn, controlSize)).Decode(&answer)
}

// controlListener takes over the listening socket that the supervisor made.
// Who may connect to it is decided by where it is in the file system.
func controlListener(fd int) (net.Listener, error) {
	file := os.NewFile(uintptr(fd), "control")
	listener, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if socket, ok := listener.(*net.UnixListener); ok {
		socket.SetUnlinkOnClose(false) // the directory is the provider's
	}
	return listener, nil
}

// control answers on the control socket until it is closed, one exchange at a
// time.
func (s *Server) control(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // out of descriptors: some come free
			continue
		}
		s.obey(conn)
	}
}

// obey is one exchange. Who does not end it properly changes nothing.
func (s *Server) obey(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(controlTime))
	var request controlRequest
	if json.NewDecoder(io.LimitReader(conn, controlSize)).Decode(&request) != nil {
		return
	}
	var answer controlAnswer
	switch {
	case request.Username == "":
		answer.Error = "username: is empty"
	case strings.Contains(request.Username, ":"):
		answer.Error = "username: a colon can't be part of it (RFC 7617)"
	default:
		s.auth.set(request.Username, request.Password)
	}
	_ = json.NewEncoder(conn).Encode(answer) // who has gone asks again
}
