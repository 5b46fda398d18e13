package provider

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/hashicorp/go-hclog"
)

// Config is one `provider "name" { type = … }` block.
type Config struct {
	// Name is the label of the block, by which tasks choose it.
	Name string
	// Type chooses the adapter: "process", "external", "kvm", "gcp", "kube".
	Type string
	// Options are the other keys of the block, which only the adapter knows.
	Options map[string]any
}

// Env is what every adapter gets beside its configuration.
type Env struct {
	// Cluster is the id of the egress installation.
	Cluster string
	// Node is the id or the name of the Nomad node; empty outside a client.
	Node string
	// StateDir is a directory of this provider's own that survives restarts of
	// the plugin and of the machine. It need not exist yet.
	StateDir string
	// Logger is never nil.
	Logger hclog.Logger
}

// Factory makes a provider. It validates and does nothing else: no connection,
// no file is opened before the first method is called, since a plugin is
// started several times at boot only to be asked for its name.
type Factory func(config Config, env Env) (Provider, error)

// Factories are the adapters by type.
type Factories map[string]Factory

// Build makes the provider that config describes. An error names the provider.
func (f Factories) Build(config Config, env Env) (Provider, error) {
	if err := CheckPlace("provider", config.Name); err != nil {
		return nil, err
	}
	factory, ok := f[config.Type]
	if !ok {
		known := make([]string, 0, len(f))
		for name := range f {
			known = append(known, name)
		}
		sort.Strings(known)
		return nil, fmt.Errorf("provider %q: type %q: want one of %s", config.Name, config.Type, strings.Join(known, ", "))
	}
	if env.Logger == nil {
		env.Logger = hclog.NewNullLogger()
	}
	built, err := factory(config, env)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", config.Name, err)
	}
	return built, nil
}

// DecodeOptions decodes the options of a provider block into target, a pointer
// to a struct with `option:"key"` tags. An unknown key, a wrong type and, for
// fields tagged `option:"key,required"`, a missing value are errors; all of
// them are told at once. Durations are strings ("30s").
func DecodeOptions(options map[string]any, target any) error {
	var meta mapstructure.Metadata
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		TagName:  "option",
		Metadata: &meta,
		Result:   target,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(),
			wholeNumbers,
		),
		MatchName: func(key, field string) bool { return key == field },
	})
	if err != nil {
		return err
	}
	var problems []error
	if err := decoder.Decode(options); err != nil {
		problems = append(problems, flatten(err)...)
	}
	known, required := optionKeys(reflect.TypeOf(target).Elem())
	slices.Sort(meta.Unused)
	for _, key := range meta.Unused {
		problems = append(problems, fmt.Errorf("unknown key %q: want one of %s", key, strings.Join(known, ", ")))
	}
	for _, key := range required {
		if _, ok := options[key]; !ok {
			problems = append(problems, fmt.Errorf("key %q is missing", key))
		}
	}
	return errors.Join(problems...)
}

// optionKeys lists the keys of a struct, and those that must be given.
func optionKeys(t reflect.Type) (known, required []string) {
	for i := range t.NumField() {
		tag := t.Field(i).Tag.Get("option")
		key, flags, _ := strings.Cut(tag, ",")
		if key == "" || key == "-" {
			continue
		}
		known = append(known, key)
		if flags == "required" {
			required = append(required, key)
		}
	}
	slices.Sort(known)
	return known, required
}

// flatten takes mapstructure's joined errors apart, so that ours read alike.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// wholeNumbers lets 8080.0 be an int, since numbers pass through formats that
// know only floats, and refuses 80.5.
func wholeNumbers(from, to reflect.Type, value any) (any, error) {
	number, ok := value.(float64)
	if !ok || to.Kind() < reflect.Int || to.Kind() > reflect.Uint64 {
		return value, nil
	}
	if number != float64(int64(number)) {
		return nil, fmt.Errorf("%v: want a whole number", number)
	}
	return int64(number), nil
}
