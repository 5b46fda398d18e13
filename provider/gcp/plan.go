package gcp

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"crypto/sha256"
	"encoding/hex"
	"google.golang.org/protobuf/proto"

	"github.com/egress-proxies/egress/provider"
)

// maxUserData is Compute Engine's bound of one metadata value.
const maxUserData = 256 << 10

// Validate says what is wrong with a spec before anything is asked.
func (p *Provider) Validate(spec provider.Spec) error {
	for key, given := range map[string]bool{
		"command":        spec.Command != "",
		"args":           len(spec.Args) > 0,
		"bind":           spec.Bind != "",
		"endpoint":       spec.Endpoint != provider.Endpoint{},
		"network_config": len(spec.NetworkConfig) > 0,
	} {
		if given {
			return provider.Permanentf("%s: has no meaning for a provider of type gcp: start the proxy by user_data", key)
		}
	}
	if spec.Zone != "" {
		if err := checkZone(spec.Zone); err != nil {
			return provider.Permanentf("%w", err)
		}
	}
	if len(spec.UserData) > maxUserData {
		return provider.Permanentf("user_data: %d bytes: want at most %d, the bound of a metadata value", len(spec.UserData), maxUserData)
	}
	if strings.ToValidUTF8(string(spec.UserData), "") != string(spec.UserData) {
		return provider.Permanentf("user_data: want text in UTF-8: the metadata server takes no other bytes; encode gzip as base64 within cloud-config")
	}
	_, err := imageURL(p.settings.Project, p.image(spec))
	if err != nil {
		return provider.Permanentf("%w", err)
	}
	return nil
}

func (p *Provider) image(spec provider.Spec) string {
	if spec.Image != "" {
		return spec.Image
	}
	return p.settings.DefaultImage
}

// imageURL is what Compute Engine wants for the forms in which people write an
// image.
func imageURL(project, image string) (string, error) {
	parts := strings.Split(image, "/")
	for _, part := range parts {
		if part == "" && !strings.HasPrefix(image, "https://") {
			return "", fmt.Errorf("image %q: want project/family, family/NAME, an image's name, or a self link", image)
		}
	}
	switch {
	case strings.HasPrefix(image, "https://"), strings.HasPrefix(image, "projects/"), strings.HasPrefix(image, "global/"):
		return image, nil
	case len(parts) == 1:
		return "projects/" + project + "/global/images/" + image, nil
	case len(parts) == 2 && parts[0] == "family":
		return "projects/" + project + "/global/images/family/" + parts[1], nil
	case len(parts) == 2:
		return "projects/" + parts[0] + "/global/images/family/" + parts[1], nil
	default:
		return "", fmt.Errorf("image %q: want project/family, family/NAME, an image's name, or a self link", image)
	}
}

// zones in which a spec may be launched, the first choice first.
func (p *Provider) zones(spec provider.Spec) []string {
	if spec.Zone != "" {
		return []string{spec.Zone}
	}
	return p.settings.Zones
}

// machine is the resource to insert.
func (p *Provider) machine(spec provider.Spec, zone string) (*computepb.Instance, error) {
	description, err := stamp{Labels: spec.Labels, Port: spec.Port}.text()
	if err != nil {
		return nil, err
	}
	image, err := imageURL(p.settings.Project, p.image(spec))
	if err != nil {
		return nil, provider.Permanentf("%w", err)
	}
	labels := p.labels(spec.Labels)
	machine := &computepb.Instance{
		Name:              &spec.Name,
		Description:       &description,
		Labels:            labels,
		MachineType:       proto.String("zones/" + zone + "/machineTypes/" + orDefault(spec.MachineType, p.settings.DefaultMachineType)),
		Disks:             []*computepb.AttachedDisk{p.disk(spec, zone, image, description, labels)},
		NetworkInterfaces: []*computepb.NetworkInterface{p.network(zone)},
		Scheduling:        p.scheduling(),
		Metadata:          p.metadata(spec),
	}
	if len(p.settings.NetworkTags) > 0 {
		machine.Tags = &computepb.Tags{Items: p.settings.NetworkTags}
	}
	if p.settings.ServiceAccount != "" {
		machine.ServiceAccounts = []*computepb.ServiceAccount{{Email: &p.settings.ServiceAccount, Scopes: p.settings.Scopes}}
	}
	return machine, nil
}

// disk is the boot disk, which has the machine's name and ends with it.
func (p *Provider) disk(spec provider.Spec, zone, image, description string, labels map[string]string) *computepb.AttachedDisk {
	params := &computepb.AttachedDiskInitializeParams{
		DiskName: &spec.Name, SourceImage: &image, Description: &description, Labels: labels,
		DiskType: proto.String("zones/" + zone + "/diskTypes/" + p.settings.DiskType),
	}
	const gib = 1024 // MiB
	if size := max(spec.Resources.DiskMiB, p.settings.DiskMiB); size > 0 {
		params.DiskSizeGb = proto.Int64((size + gib - 1) / gib)
	}
	return &computepb.AttachedDisk{Boot: proto.Bool(true), AutoDelete: proto.Bool(true), InitializeParams: params}
}

func (p *Provider) network(zone string) *computepb.NetworkInterface {
	nic := &computepb.NetworkInterface{}
	if p.settings.Network != "" {
		network := p.settings.Network
		if !strings.Contains(network, "/") {
			network = "global/networks/" + network
		}
		nic.Network = &network
	}
	if p.settings.Subnetwork != "" {
		subnetwork := p.settings.Subnetwork
		if !strings.Contains(subnetwork, "/") {
			subnetwork = "regions/" + regionOf(zone) + "/subnetworks/" + subnetwork
		}
		nic.Subnetwork = &subnetwork
	}
	if p.settings.external {
		nic.AccessConfigs = []*computepb.AccessConfig{{Name: proto.String("External NAT"), Type: proto.String("ONE_TO_ONE_NAT")}}
	}
	return nic
}

// scheduling never restarts a machine by itself: an end is an end, and what
// comes after it is Nomad's to decide.
func (p *Provider) scheduling() *computepb.Scheduling {
	s := &computepb.Scheduling{AutomaticRestart: proto.Bool(false), ProvisioningModel: proto.String("STANDARD")}
	if p.settings.Provisioning == spot {
		s.ProvisioningModel, s.Preemptible = proto.String("SPOT"), proto.Bool(true)
		s.OnHostMaintenance = proto.String("TERMINATE")
		s.InstanceTerminationAction = proto.String(strings.ToUpper(p.settings.OnPreemption))
	}
	return s
}

// portKey is the metadata key by which a guest learns where to listen.
const portKey = "egress-port"

func (p *Provider) metadata(spec provider.Spec) *computepb.Metadata {
	items := []*computepb.Items{{Key: proto.String(portKey), Value: proto.String(strconv.Itoa(spec.Port))}}
	if len(spec.UserData) > 0 {
		items = append(items, &computepb.Items{Key: &p.settings.UserDataKey, Value: proto.String(string(spec.UserData))})
	}
	return &computepb.Metadata{Items: items}
}

// labels are for filters and for bills: what doesn't fit into a label is cut.
// The exact values are in the description.
func (p *Provider) labels(l provider.Labels) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, p.settings.Labels)
	for key, value := range l.Map() {
		if key != provider.LabelCreatedAt && value != "" {
			labels[key] = labelValue(value)
		}
	}
	labels[provider.LabelCluster] = labelValue(p.env.Cluster)
	return labels
}

// maxLabel is Compute Engine's bound of a label's value.
const maxLabel = 63

// labelValue is text as a label takes it. One that had to be changed ends in a
// hash, so that no two texts share a value.
func labelValue(text string) string {
	if len(text) <= maxLabel && valuePattern.MatchString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			r = '_'
		}
		b.WriteRune(r)
	}
	sum := sha256.Sum256([]byte(text))
	const hash = 8
	return b.String()[:min(b.Len(), maxLabel-hash-1)] + "-" + hex.EncodeToString(sum[:])[:hash]
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
