package provider

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
)

// DecodeOptions decodes the options of a provider block into target, a pointer
// to a struct with `option:"key"` tags. An unknown key, a wrong type and, for
// fields tagged `option:"key,required"`, a missing value are errors; all of
// them are told at once. Durations are strings ("30s").
func DecodeOptions(options map[string]any, target any) error {
	var meta mapstructure.Metadata
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		TagName:    "option",
		Metadata:   &meta,
		Result:     target,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(durations, wholeNumbers),
		MatchName:  func(key, field string) bool { return key == field },
	})
	if err != nil {
		return err
	}
	problems := decodeProblems(decoder.Decode(options))
	known, required := optionKeys(reflect.TypeOf(target).Elem())
	unused := meta.Unused
	for key := range options {
		// After a decode error the library reports nothing as unused.
		if !slices.Contains(known, key) && !slices.Contains(unused, key) {
			unused = append(unused, key)
		}
	}
	slices.Sort(unused)
	for _, key := range unused {
		problem := fmt.Errorf("unknown key %q", key)
		if _, topLevel := options[key]; topLevel {
			problem = fmt.Errorf("unknown key %q: want one of %s", key, strings.Join(known, ", "))
		}
		problems = append(problems, problem)
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
		key, flags, _ := strings.Cut(t.Field(i).Tag.Get("option"), ",")
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

// decodeProblems takes the library's tree of errors apart: one error for each
// key, with its value, which the library leaves out.
func decodeProblems(err error) []error {
	if err == nil {
		return nil
	}
	var inner []error
	switch wrapped := err.(type) {
	case interface{ Unwrap() []error }:
		for _, one := range wrapped.Unwrap() {
			inner = append(inner, decodeProblems(one)...)
		}
		return inner
	case *mapstructure.DecodeError:
		if cause := wrapped.Unwrap(); hasDecodeError(cause) {
			return decodeProblems(cause)
		}
		return []error{keyProblem(wrapped)}
	case interface{ Unwrap() error }:
		if cause := wrapped.Unwrap(); cause != nil {
			return decodeProblems(cause)
		}
	}
	return []error{err}
}

func hasDecodeError(err error) bool {
	var inner *mapstructure.DecodeError
	return errors.As(err, &inner)
}

func keyProblem(err *mapstructure.DecodeError) error {
	var mistyped *mapstructure.UnconvertibleTypeError
	if errors.As(err, &mistyped) {
		return fmt.Errorf("key %q: value %v: want %s", err.Name(), mistyped.Value, kindName(mistyped.Expected.Type()))
	}
	return fmt.Errorf("key %q: %w", err.Name(), err.Unwrap())
}

// kindName says what a person must write.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a block"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

func durations(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() || from == to {
		return value, nil
	}
	text, ok := value.(string)
	parsed, err := time.ParseDuration(text)
	if !ok || err != nil {
		return nil, fmt.Errorf("value %v: want a duration such as \"30s\" or \"5m\"", value)
	}
	return parsed, nil
}

// wholeNumbers lets 8080.0 be an int, since numbers pass through formats that
// know only floats, and refuses 80.5.
func wholeNumbers(from, to reflect.Type, value any) (any, error) {
	number, ok := value.(float64)
	if !ok || to.Kind() < reflect.Int || to.Kind() > reflect.Uint64 {
		return value, nil
	}
	if number != float64(int64(number)) {
		return nil, fmt.Errorf("value %v: want a whole number", number)
	}
	return int64(number), nil
}
