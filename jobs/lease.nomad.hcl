# The lease service, whose own health Consul checks.
#
#   nomad job run -var binary=/opt/nomad/plugins/egress lease.nomad.hcl

variable "name" {
  type        = string
  default     = "egress-lease"
  description = "Id of the job, and name of its Consul service."
}

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

variable "count" {
  type        = number
  default     = 1
  description = "How many replicas. The memory store serves only one."
}

variable "driver" {
  type        = string
  default     = "raw_exec"
  description = "raw_exec or exec."
}

variable "binary" {
  type        = string
  default     = "egress"
  description = "The program on the nodes: the same one that is the plugin."
}

variable "port" {
  type        = number
  default     = 0
  description = "A fixed port; 0 lets Nomad pick one."
}

variable "consul" {
  type        = string
  default     = "127.0.0.1:8500"
  description = "Address of Consul's HTTP API."
}

variable "service" {
  type        = string
  default     = "egress-proxy"
  description = "Name of the proxies' Consul service."
}

variable "store" {
  type        = string
  default     = "memory"
  description = "Where leases live."
}

variable "token_file" {
  type        = string
  default     = ""
  description = "Path on the nodes of the bearer token, without which the service listens on loopback only."
}

variable "args" {
  type        = list(string)
  default     = []
  description = "Further flags of `egress lease serve`."
}

job "egress-lease" {
  id          = var.name
  name        = var.name
  datacenters = var.datacenters

  group "lease" {
    count = var.count

    network {
      port "http" {
        static = var.port
      }
    }

    service {
      name     = var.name
      port     = "http"
      provider = "consul"

      check {
        type     = "http"
        path     = "/readyz"
        interval = "2s"
        timeout  = "1s"
      }
    }

    update {
      max_parallel     = 1
      min_healthy_time = "1s"
      healthy_deadline = "1m"
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "1s"
      mode     = "delay"
    }

    task "serve" {
      driver = var.driver

      config {
        command = var.binary
        args = concat([
          "lease", "serve",
          "--listen", "${NOMAD_ADDR_http}",
          "--consul-address", var.consul,
          "--service", var.service,
          "--store", var.store,
        ], var.token_file == "" ? [] : ["--token-file", var.token_file], var.args)
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
