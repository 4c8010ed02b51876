variable "bucket" {
  description = "Name of the bucket; unique in the world."
  type        = string
}

variable "name" {
  description = "Goes into the names of all that is made."
  type        = string
  default     = "train-single"
}

variable "region" {
  description = "Where."
  type        = string
  default     = "us-east-1"
}

variable "zone" {
  description = "Letter of the zone; not every zone has every instance type."
  type        = string
  default     = "b"
}

variable "instance_type" {
  description = "A type with GPUs and local NVMe drives."
  type        = string
  default     = "g5.xlarge"
}

variable "spot" {
  description = "Ask for spot capacity."
  type        = bool
  default     = false
}

variable "writer_principals" {
  description = "ARNs of roles or users that may take the writer's role."
  type        = list(string)
  default     = []
}

variable "prevent_destroy" {
  description = "Refuse to destroy or rename the bucket."
  type        = bool
  default     = true
}
