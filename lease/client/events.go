package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/egress-proxies/egress/lease/api"
)

// maxEvent bounds a line of the stream: an event is a few KB.
const maxEvent = 1 << 20

// Watch calls each with every event, from now on, until ctx ends, each gives an
// error, or the stream breaks. The kind of the first event is "hello".
func (c *Client) Watch(ctx context.Context, each func(kind string, e api.Event) error) error {
	base, err := c.base(ctx)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+api.PathEvents, nil)
	if err != nil {
		return err
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("lease service: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(response.Body, maxEvent))
		return problem(response, data)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	kind := ""
	for lines.Scan() {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			kind = name
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e api.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("lease service: event %s: %w", kind, err)
		}
		if err := each(kind, e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("lease service: the stream of events broke: %w", err)
	}
	return io.ErrUnexpectedEOF
}
