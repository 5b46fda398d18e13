# Proxies that somebody else runs, probed, registered and leased like one's own.
#
#   nomad job run -var 'endpoints={a={host="p1.example",port=3128}}' external.nomad.hcl
#
# Each endpoint is a group with one task. The task launches nothing; while it
# runs, its endpoint is watched.

variable "name" {
  type        = string
  default     = "bought"
  description = "Id of the job."
}

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

variable "endpoints" {
  type        = map(object({ host = string, port = number }))
  description = "The proxies, each under a name of its own."
}

variable "provider" {
  type        = string
  default     = "bought"
  description = "A provider of type external in the plugin's configuration."
}

variable "service" {
  type        = string
  default     = "egress-proxy"
  description = "Name of the Consul service."
}

variable "tags" {
  type    = list(string)
  default = []
}

variable "attributes" {
  type        = map(string)
  default     = {}
  description = "What crawlers select by: {country = \"DE\"}."
}

variable "max_leases" {
  type        = number
  default     = 1
  description = "How many crawlers may hold a lease on one proxy; 0 is unlimited."
}

variable "auth" {
  type        = string
  default     = ""
  description = "Name of the credentials that the proxies ask for."
}

variable "probe_urls" {
  type        = list(string)
  default     = []
  description = "Pages that a working proxy can fetch; empty is the plugin's choice."
}

job "bought" {
  id          = var.name
  name        = var.name
  datacenters = var.datacenters

  dynamic "group" {
    for_each = var.endpoints
    labels   = [group.key]

    content {
      update {
        health_check     = "task_states"
        min_healthy_time = "0s"
      }
      restart {
        attempts = 3
        interval = "5m"
        delay    = "15s"
        mode     = "delay"
      }

      task "proxy" {
        driver = "egress"

        config {
          provider   = var.provider
          attributes = var.attributes
          max_leases = var.max_leases

          endpoint {
            host = group.value.host
            port = group.value.port
          }
          service {
            name = var.service
            tags = var.tags
          }
          # Blocks as lists: Nomad expands no dynamic blocks inside of config.
          auth  = [for name in [var.auth] : { name = name } if name != ""]
          probe = [for urls in [var.probe_urls] : { urls = urls } if length(urls) > 0]
        }

        # Nothing runs here; these are the smallest sizes that Nomad takes.
        resources {
          cpu    = 1
          memory = 10
        }
      }
    }
  }
}
