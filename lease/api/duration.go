package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Duration is a time.Duration that is written "90s" and read from that or from
// a number of seconds.
type Duration time.Duration

// MarshalJSON writes the form of time.Duration.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}

// UnmarshalJSON reads "90s" or 90. Its error names the value.
func (d *Duration) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text == "null" {
		return nil
	}
	if len(text) > 0 && text[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		parsed, err := ParseDuration(s)
		*d = Duration(parsed)
		return err
	}
	parsed, err := ParseDuration(text)
	*d = Duration(parsed)
	return err
}

// ParseDuration reads "90s" or "90", which is seconds.
func ParseDuration(text string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if math.IsNaN(seconds) || math.Abs(seconds) > math.MaxInt64/float64(2*time.Second) {
			return 0, fmt.Errorf("duration %q: too long", text)
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("duration %q: want a form such as 90s, 5m or a number of seconds", text)
	}
	return d, nil
}
