package driver

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// stateSchema is the version of taskState. A later plugin reads the earlier
// ones; an earlier plugin refuses a later one, and Nomad starts the task anew.
const stateSchema = 1

// taskState is what Nomad keeps for us: all that is needed to go on with a
// task in another process. The task's config is in it because an agent that
// restarts hands over a TaskConfig without.
type taskState struct {
	Schema     int             `json:"schema"`
	Provider   string          `json:"provider"`
	Ref        provider.Ref    `json:"ref"`
	InstanceID string          `json:"instance_id"`
	Address    string          `json:"address"`
	Port       int             `json:"port"`
	PortLabel  string          `json:"port_label,omitempty"`
	Labels     provider.Labels `json:"labels"`
	Task       taskConfig      `json:"task"`
	StartedAt  time.Time       `json:"started_at"`
}

// encode puts the state into a handle for Nomad.
func (s taskState) encode(cfg *drivers.TaskConfig) (*drivers.TaskHandle, error) {
	encoded, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the driver state: %w", err)
	}
	handle := drivers.NewTaskHandle(stateSchema)
	handle.Config = cfg
	handle.State = drivers.TaskStateRunning
	handle.DriverState = encoded
	return handle, nil
}

// decodeState is the inverse of encode. It also takes what a hand or a bug made
// of it: whatever it accepts can be worked with.
func decodeState(handle *drivers.TaskHandle) (taskState, error) {
	if handle.Version > stateSchema {
		return taskState{}, fmt.Errorf("driver state: schema %d: this plugin reads up to %d", handle.Version, stateSchema)
	}
	var state taskState
	if err := json.Unmarshal(handle.DriverState, &state); err != nil {
		return taskState{}, fmt.Errorf("driver state: %w", err)
	}
	switch {
	case state.Schema < 1 || state.Schema > stateSchema:
		return taskState{}, fmt.Errorf("driver state: schema %d: this plugin reads 1 to %d", state.Schema, stateSchema)
	case state.Port < 0 || state.Port > maxPort:
		return taskState{}, fmt.Errorf("driver state: port %d: want at most %d", state.Port, maxPort)
	}
	if err := provider.CheckName(state.Ref.Name); err != nil {
		return taskState{}, fmt.Errorf("driver state: %w", err)
	}
	return state, nil
}
