# The lease service: replicas of which one leads, and whose leases live in Consul.
#
#   nomad job run -var binary=/opt/nomad/plugins/egress lease.nomad.hcl
#
# Where the nodes' network is not the loopback, the service wants tokens:
#
#   nomad job run -var binary=… -var token_file=/etc/egress/tokens.json lease.nomad.hcl
#
# Crawlers find the replicas in Consul as the passing ones of the job's name. An
# update replaces one after the other and fails no request: see docs/operations.md.

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
  default     = 2
  description = "How many replicas. The memory store is always one."
}

variable "distinct_hosts" {
  type        = bool
  default     = false
  description = "Whether no two replicas may share a node."
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
  description = "A fixed port, for clients that find the replicas by DNS; 0 lets Nomad pick one."
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
  default     = "consul"
  description = "Where leases live: consul, or memory, which loses them at each restart."
}

variable "prefix" {
  type        = string
  default     = "egress/lease/"
  description = "Where leases live in Consul's key-value store. Jobs with one prefix are replicas of each other."
}

variable "token_file" {
  type        = string
  default     = ""
  description = "Path on the nodes of the bearer tokens, without which the service listens on loopback only."
}

variable "tls_cert" {
  type        = string
  default     = ""
  description = "Path on the nodes of the certificate; with it the service speaks HTTPS."
}

variable "tls_key" {
  type        = string
  default     = ""
  description = "Path on the nodes of the certificate's key."
}

variable "ca_file" {
  type        = string
  default     = ""
  description = "Path on the nodes of the authorities of the replicas' certificates; empty is the system's."
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
    count = var.store == "memory" ? 1 : var.count

    # A replica leaves Consul this long before it is asked to end, so that
    # clients have stopped coming when it closes its door.
    shutdown_delay = "3s"

    dynamic "constraint" {
      for_each = var.distinct_hosts ? [1] : []
      content {
        operator = "distinct_hosts"
        value    = "true"
      }
    }

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
        type            = "http"
        protocol        = var.tls_cert == "" ? "http" : "https"
        tls_skip_verify = true
        path            = "/readyz"
        interval        = "2s"
        timeout         = "2s"
      }
    }

    # One replica at a time, the next when Consul calls the new one healthy. A
    # version that does not get there is taken back.
    update {
      max_parallel     = 1
      health_check     = "checks"
      min_healthy_time = "2s"
      healthy_deadline = "1m"
      auto_revert      = true
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "1s"
      mode     = "delay"
    }

    task "serve" {
      driver = var.driver

      # Requests have ten seconds to finish (--shutdown-timeout); before that the
      # leadership is handed over, which waits for a commit that is under way.
      kill_timeout = "30s"

      config {
        command = var.binary
        args = concat([
          "lease", "serve",
          "--listen", "${NOMAD_ADDR_http}",
          "--advertise", var.tls_cert == "" ? "http://${NOMAD_ADDR_http}" : "https://${NOMAD_ADDR_http}",
          "--consul-address", var.consul,
          "--consul-prefix", var.prefix,
          "--service", var.service,
          "--store", var.store,
          ],
          var.token_file == "" ? [] : ["--token-file", var.token_file],
          var.tls_cert == "" ? [] : ["--tls-cert", var.tls_cert, "--tls-key", var.tls_key],
          var.ca_file == "" ? [] : ["--ca-file", var.ca_file],
        var.args)
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
