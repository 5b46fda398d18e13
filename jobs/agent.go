package jobs

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// agentError translates an error of the API client: who was asked and what can
// be done when there was no answer, and otherwise what the agent said.
func agentError(client *api.Client, doing string, err error) error {
	var unanswered *url.Error
	if errors.As(err, &unanswered) {
		return fmt.Errorf("%s: no answer from a Nomad agent at %s: %w: give the address of one that runs, in NOMAD_ADDR or --address",
			doing, client.Address(), unanswered.Err)
	}
	var refused api.UnexpectedResponseError
	if !errors.As(err, &refused) || !refused.HasBody() {
		return fmt.Errorf("%s: %w", doing, err)
	}
	said := strings.TrimSpace(refused.Body())
	if refused.StatusCode() == http.StatusForbidden {
		return fmt.Errorf("%s: the Nomad agent at %s says %q: give a token that may, in NOMAD_TOKEN", doing, client.Address(), said)
	}
	return fmt.Errorf("%s: the Nomad agent at %s answers %d: %s", doing, client.Address(), refused.StatusCode(), said)
}
