# A fleet of proxies that run in pods of a Kubernetes cluster.
#
#   nomad job run -var count=10 -var zone=eu-1a kube.nomad.hcl
#
# Each pod runs squid, configured by egress, on the same port of an address of
# its own. A task is healthy when its proxy has fetched a page, so that a
# deployment goes on only as far as proxies work. Crawlers and the Nomad nodes
# must reach the addresses of the pods.

variable "name" {
  type        = string
  default     = "pods"
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
  default     = "k8s"
  description = "A provider of type kube in the plugin's configuration."
}

variable "zone" {
  type        = string
  default     = ""
  description = "A value of the node label topology.kubernetes.io/zone; empty is any node."
}

variable "image" {
  type        = string
  default     = ""
  description = "An image; empty is the provider's default, Canonical's squid."
}

variable "port" {
  type        = number
  default     = 3128
  description = "Where the proxy listens in the pod."
}

variable "command" {
  type        = string
  default     = ""
  description = "A program of the image to run instead of squid."
}

variable "args" {
  type        = list(string)
  default     = []
  description = "Arguments of the program, or further ones of squid."
}

variable "user_data" {
  type        = string
  default     = ""
  description = "Text that the container finds as /etc/egress/user-data."
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
  description = "How long a proxy has to end; Kubernetes gives it 30s at most."
}

variable "start_timeout" {
  type        = string
  default     = "5m"
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
  description = "What a node must have: [{attribute=\"attr.driver.egress.k8s.default.instances_free\", operator=\">=\", value=\"10\"}]."
}

variable "distinct_hosts" {
  type        = bool
  default     = false
  description = "No two proxies on one node."
}

variable "spread" {
  type        = string
  default     = ""
  description = "Over what of the nodes the proxies are spread: \"node.unique.name\". Where the pods go is the cluster's choice."
}

variable "cpu" {
  type        = number
  default     = 100
  description = "MHz for each: the pod asks for a thousandth of a processor for each two."
}

variable "memory" {
  type        = number
  default     = 256
  description = "MiB for each: the limit of the pod, and of the Nomad node's books."
}

job "pods" {
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
        image         = var.image
        port          = var.port
        command       = var.command
        args          = var.args
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
