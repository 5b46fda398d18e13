package http

import (
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egress-proxies/egress/lease/api"
)

// object is a JSON object.
type object = map[string]any

// everywhere are the problems that every path of the API may answer with.
var everywhere = []api.Code{api.CodeInvalid, api.CodeUnauthorized, api.CodeForbidden, api.CodeTooLarge, api.CodeTooMany,
	api.CodeNotReady, api.CodeNoLeader, api.CodeUncertain, api.CodeInternal}

// openAPI makes the OpenAPI 3.1 document of the table.
func openAPI(table []route) object {
	schemas := object{}
	schemaOf(reflect.TypeFor[api.Problem](), schemas)
	schemaOf(reflect.TypeFor[api.Event](), schemas)
	paths := object{}
	for _, r := range table {
		path, _ := paths[r.path].(object)
		if path == nil {
			path = object{}
			paths[r.path] = path
		}
		path[strings.ToLower(r.method)] = operation(r, schemas)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "egress lease service",
			"version":     "1",
			"description": "Hands working proxies to crawlers. Errors are problem details (RFC 9457); docs/lease-api.md has a table for each rule.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"paths": paths,
		"components": object{
			"schemas":         schemas,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
		},
	}
}

func operation(r route, schemas object) object {
	op := object{
		"summary":     r.summary,
		"operationId": strings.ToLower(r.method) + strings.NewReplacer("/v1", "", "/", "_", "{id}", "id").Replace(r.path),
		"security":    []any{object{"token": []string{string(r.scope)}}, object{}},
	}
	parameters := []any{}
	if strings.Contains(r.path, "{id}") {
		parameters = append(parameters, object{"name": "id", "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range r.query {
		parameters = append(parameters, object{"name": p.name, "in": "query", "description": p.text, "schema": object{"type": "string"}})
	}
	if r.method == http.MethodPost && r.path == api.PathLeases {
		parameters = append(parameters, object{"name": api.HeaderKey, "in": "header", "schema": object{"type": "string", "maxLength": 128},
			"description": "The same key gives the same leases for as long as one of them lives."})
	}
	op["parameters"] = parameters
	if r.in != nil {
		op["requestBody"] = object{"content": content("application/json", schemaOf(reflect.TypeOf(r.in), schemas))}
	}
	op["responses"] = responses(r, schemas)
	return op
}

func content(mediaType string, schema object) object {
	return object{mediaType: object{"schema": schema}}
}

// responses are the answer and, by status, the problems.
func responses(r route, schemas object) object {
	good := object{"description": "Done."}
	switch {
	case r.out != nil:
		good["content"] = content("application/json", schemaOf(reflect.TypeOf(r.out), schemas))
		if r.path == api.PathProxies {
			good["content"].(object)["text/plain"] = object{"schema": object{"type": "string"}}
		}
	case r.path == api.PathEvents:
		good["content"] = content("text/event-stream", object{"type": "string"})
	}
	out := object{strconv.Itoa(r.status): good}
	byStatus := map[int][]string{}
	for _, k := range kinds {
		text := string(k.code) + ": " + k.title
		if (slices.Contains(everywhere, k.code) || slices.Contains(r.codes, k.code)) && k.status != 499 && !slices.Contains(byStatus[k.status], text) {
			byStatus[k.status] = append(byStatus[k.status], text)
		}
	}
	for status, texts := range byStatus {
		answer := object{"description": strings.Join(texts, "; ") + ".", "content": content(api.ProblemType, ref("Problem"))}
		if status == http.StatusConflict || status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
			answer["headers"] = object{"Retry-After": object{"description": "Seconds.", "schema": object{"type": "integer"}}}
		}
		out[strconv.Itoa(status)] = answer
	}
	return out
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemaOf is the schema of a type; structs are put into schemas by name.
func schemaOf(t reflect.Type, schemas object) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[api.Duration]():
		return object{"type": []string{"string", "number"}, "description": "90s, 5m, or seconds.", "examples": []any{"90s", 90}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Struct:
		if _, known := schemas[t.Name()]; !known {
			schemas[t.Name()] = object{} // stops a recursion
			schemas[t.Name()] = structSchema(t, schemas)
		}
		return ref(t.Name())
	}
	return object{"type": "string"}
}

func structSchema(t reflect.Type, schemas object) object {
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		schema := schemaOf(t.Field(i).Type, schemas)
		if t.Field(i).Type.Kind() == reflect.Pointer && !strings.Contains(options, "omit") {
			schema = object{"oneOf": []any{schema, object{"type": "null"}}}
		}
		properties[name] = schema
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}
