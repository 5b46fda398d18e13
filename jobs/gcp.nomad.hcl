# A fleet of proxies that run in virtual machines on Google Compute Engine.
#
#   nomad job run -var count=10 -var zone=europe-west1-b gcp.nomad.hcl
#
# Each machine is configured by its user-data and listens on the same port of an
# address of its own. A task is healthy when its proxy has fetched a page, so
# that a deployment goes on only as far as proxies work. A firewall rule of the
# project must let crawlers and the Nomad nodes reach the port.

variable "name" {
  type        = string
  default     = "google"
  description = "Id of the job."
}

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

variable "count" {
  type        = number
  default     = 3
  description = "How many proxies. More or fewer leave the others alone."
}

variable "provider" {
  type        = string
  default     = "google"
  description = "A provider of type gcp in the plugin's configuration."
}

variable "zone" {
  type        = string
  default     = ""
  description = "A zone; empty is the first of the provider's that has room."
}

variable "machine_type" {
  type        = string
  default     = ""
  description = "A machine type of Google's; empty is the provider's default, e2-small."
}

variable "image" {
  type        = string
  default     = ""
  description = "PROJECT/FAMILY, family/NAME, the name of an image, or a self link; empty is the provider's default, Ubuntu 24.04."
}

variable "port" {
  type        = number
  default     = 3128
  description = "Where the proxy listens in the guest."
}

variable "user_data" {
  type        = string
  description = "What cloud-init does in the guest, or a startup script with user_data_key = \"startup-script\". The default installs squid for clients in private networks."
  default     = <<-EOT
    #cloud-config
    packages: [squid]
    write_files:
      - path: /etc/squid/conf.d/egress.conf
        content: |
          visible_hostname egress
          acl egress_clients src 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7
          http_access allow egress_clients
    runcmd:
      - systemctl restart squid
    EOT
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

variable "drain" {
  type        = string
  default     = "0s"
  description = "How long a proxy that is to stop serves on, gone from Consul already."
}

variable "kill_timeout" {
  type        = string
  default     = "30s"
  description = "How long a guest has to shut down."
}

variable "start_timeout" {
  type        = string
  default     = "10m"
  description = "How long a proxy has to start and pass its first probe."
}

variable "restart_delay" {
  type    = string
  default = "2s"
}

variable "restart_attempts" {
  type        = number
  default     = 3
  description = "How often within five minutes a proxy is started again in its place, before it is moved."
}

variable "max_parallel" {
  type        = number
  default     = 1
  description = "How many proxies an update replaces at once."
}

variable "canary" {
  type        = number
  default     = 0
  description = "How many new proxies an update must prove beside the old ones before it replaces any."
}

variable "auto_revert" {
  type        = bool
  default     = true
  description = "An update whose proxies never work goes back to the version before."
}

variable "healthy_deadline" {
  type        = string
  default     = "15m"
  description = "How long a new proxy of a deployment may take until it works."
}

variable "progress_deadline" {
  type        = string
  default     = "30m"
  description = "How long a deployment may go without another working proxy before it has failed."
}

variable "constraints" {
  type        = list(object({ attribute = string, operator = string, value = string }))
  default     = []
  description = "What a node must have: [{attribute=\"attr.driver.egress.hv.a.pool_available_gib\", operator=\">=\", value=\"50\"}]."
}

variable "distinct_hosts" {
  type        = bool
  default     = false
  description = "No two proxies on one node."
}

variable "spread" {
  type        = string
  default     = ""
  description = "Over what of the nodes the proxies are spread: \"node.unique.name\", \"attr.driver.egress.hv.a.hostname\"."
}

variable "cpu" {
  type        = number
  default     = 50
  description = "MHz for each."
}

variable "memory" {
  type        = number
  default     = 512
  description = "MiB for each: of the guest, when no machine_type is given, and of the Nomad node's books."
}

job "google" {
  id          = var.name
  name        = var.name
  datacenters = var.datacenters

  # A node whose provider can't launch anything gets no new proxies, and those
  # that run there stay.
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
  dynamic "constraint" {
    for_each = [for wanted in [var.distinct_hosts] : wanted if wanted]
    content {
      distinct_hosts = true
    }
  }
  dynamic "spread" {
    for_each = [for attribute in [var.spread] : attribute if attribute != ""]
    content {
      attribute = "$${${spread.value}}"
    }
  }

  group "proxy" {
    count = var.count

    update {
      max_parallel      = var.max_parallel
      health_check      = "task_states"
      min_healthy_time  = "0s"
      healthy_deadline  = var.healthy_deadline
      progress_deadline = var.progress_deadline
      canary            = var.canary
      auto_promote      = var.canary > 0
      auto_revert       = var.auto_revert
    }

    # A proxy that dies is started again at once; one that never works is moved
    # to other nodes, ever more slowly.
    restart {
      attempts = var.restart_attempts
      interval = "5m"
      delay    = var.restart_delay
      mode     = "fail"
    }
    reschedule {
      unlimited      = true
      delay          = "10s"
      delay_function = "exponential"
      max_delay      = "10m"
    }

    task "proxy" {
      driver       = "egress"
      kill_timeout = var.kill_timeout

      config {
        provider      = var.provider
        zone          = var.zone
        machine_type  = var.machine_type
        image         = var.image
        port          = var.port
        user_data     = var.user_data
        attributes    = var.attributes
        max_leases    = var.max_leases
        drain         = var.drain
        start_timeout = var.start_timeout

        service {
          name = var.service
          tags = var.tags
        }
        # Blocks as lists: Nomad expands no dynamic blocks inside of config.
        auth  = [for name in [var.auth] : { name = name } if name != ""]
        probe = [for urls in [var.probe_urls] : { urls = urls } if length(urls) > 0]
      }

      resources {
        cpu    = var.cpu
        memory = var.memory
      }
    }
  }
}
