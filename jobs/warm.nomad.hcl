# Keeps images warm on the hypervisors of each Nomad node.
#
#   nomad job run -var 'images=["debian-12"]' warm.nomad.hcl
#
# On each node whose provider can launch machines, now and when it joins later,
# `egress images warm` fetches the images, so that no start waits for a download,
# and looks again in intervals whether they changed or went missing. It is a task
# of raw_exec: it needs what the plugin needs, its configuration, its keys and
# libvirt's socket, and no instance, address or probe. Pruning leaves the images
# alone as long as the job runs.

variable "name" {
  type        = string
  default     = "warm-images"
  description = "Id of the job."
}

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

variable "provider" {
  type        = string
  default     = "hv"
  description = "A provider of type kvm in the plugin's configuration."
}

variable "images" {
  type        = list(string)
  default     = []
  description = "Images of the provider's, or http(s) URLs; none is every image of the configuration."
}

variable "targets" {
  type        = list(string)
  default     = []
  description = "Only these hosts of the provider's; none is all."
}

variable "every" {
  type        = string
  default     = "1h"
  description = "How often it is looked whether the images changed or went missing."
}

variable "splay" {
  type        = string
  default     = "10s"
  description = "A random wait before the first look, so that nodes which share hypervisors don't begin at once."
}

variable "binary" {
  type        = string
  default     = "egress"
  description = "The program on the nodes: the same one that is the plugin."
}

variable "config" {
  type        = string
  default     = "/etc/nomad.d"
  description = "File or directory of the Nomad agent's configuration on the nodes."
}

variable "constraints" {
  type        = list(object({ attribute = string, operator = string, value = string }))
  default     = []
  description = "What a node must have: [{attribute=\"node.class\", operator=\"=\", value=\"hypervisor\"}]."
}

job "warm-images" {
  id          = var.name
  name        = var.name
  type        = "system"
  datacenters = var.datacenters

  # Where nothing can be launched nothing needs to be fetched; Nomad looks again
  # when that changes.
  constraint {
    attribute = "$${attr.driver.egress.${var.provider}.ready}"
    value     = "true"
  }
  dynamic "constraint" {
    for_each = var.constraints
    content {
      attribute = "$${${constraint.value.attribute}}"
      operator  = constraint.value.operator
      value     = constraint.value.value
    }
  }

  group "warm" {
    restart {
      attempts = 5
      interval = "5m"
      delay    = "10s"
      mode     = "delay"
    }

    task "images" {
      driver       = "raw_exec"
      kill_timeout = "30s" # What is half sent is removed from the hypervisors.

      config {
        command = var.binary
        args = concat(
          ["images", "warm", "--config", var.config, "--provider", var.provider, "--every", var.every, "--splay", var.splay],
          flatten([for target in var.targets : ["--target", target]]),
          length(var.images) > 0 ? var.images : ["--all"],
        )
      }

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
