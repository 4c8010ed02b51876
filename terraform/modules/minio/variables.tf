variable "bucket" {
  description = "Name of the bucket."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "A bucket's name has 3 to 63 lower-case letters, digits and hyphens, and neither begins nor ends with a hyphen."
  }
}

variable "prefix" {
  description = "Where in the bucket the data set lies, such as \"photos\". Reader and writer see nothing beside it. Empty: the whole bucket."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*)?$", var.prefix))
    error_message = "A prefix is made of letters, digits, '_', '.' and '-', with single slashes between its parts and none at either end; no part begins with a dot or a hyphen."
  }
}

variable "endpoint_url" {
  description = "Address of the server as the training machines see it, with http:// or https://. It only goes into the outputs."
  type        = string

  validation {
    condition     = can(regex("^https?://[^/@?#]+$", var.endpoint_url))
    error_message = "An endpoint looks like https://minio.example.org:9000, without a path and without credentials."
  }
}

variable "region" {
  description = "The server's region, as clients sign for it."
  type        = string
  default     = "us-east-1"
}

variable "versioning" {
  description = "Keep overwritten and deleted objects for noncurrent_days."
  type        = bool
  default     = true
}

variable "noncurrent_days" {
  description = "After how many days versions that are no longer current are deleted."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 1 && floor(var.noncurrent_days) == var.noncurrent_days
    error_message = "noncurrent_days is a whole number, 1 or more."
  }
}

variable "force_destroy" {
  description = "Let destroy delete the bucket with all that is in it. Off: destroy fails while it holds anything."
  type        = bool
  default     = false
}
