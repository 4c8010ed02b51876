# -- the data ----------------------------------------------------------------------------------------------------------

variable "name" {
  description = "Goes into the names and tags of all that is made."
  type        = string
  default     = "training"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,22}[a-z0-9]$", var.name))
    error_message = "A name has 3 to 24 lower-case letters, digits and hyphens, begins with a letter and ends with none of the hyphens."
  }
}

variable "bucket" {
  description = "Name of the bucket; unique in the world."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "A bucket's name has 3 to 63 lower-case letters, digits and hyphens, and neither begins nor ends with a hyphen. (Dots break TLS.)"
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

variable "prevent_destroy" {
  description = "Refuse every plan that destroys or renames the bucket. Turning it off later takes a state rm, see the README."
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

variable "kms_key_arn" {
  description = "KMS key to encrypt the bucket with. Null: S3's own keys (AES-256), and nobody gets a right at KMS."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key (not of an alias)."
  }
}

variable "express" {
  description = "Also make an S3 Express One Zone directory bucket in the instances' zone."
  type        = bool
  default     = false
}

variable "writer_principals" {
  description = "ARNs of roles or users that may take the writer's role. Empty: no writer's role is made."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.writer_principals : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[A-Za-z0-9+=,.@_/-]+$", arn))])
    error_message = "Each of writer_principals is the ARN of one role or user; no wildcards, no whole accounts."
  }
}

# -- the network -------------------------------------------------------------------------------------------------------

variable "availability_zone" {
  description = "Zone of the instances and of the directory bucket, such as us-east-1b. Not every zone has every instance type, nor S3 Express."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$", var.availability_zone))
    error_message = "A zone looks like us-east-1b."
  }
}

variable "vpc_cidr" {
  description = "Addresses of the VPC; /16 to /24."
  type        = string
  default     = "10.40.0.0/20"

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 0)) && try(tonumber(split("/", var.vpc_cidr)[1]) >= 16 && tonumber(split("/", var.vpc_cidr)[1]) <= 24, false)
    error_message = "vpc_cidr is an IPv4 network from /16 to /24."
  }
}

variable "nat_gateway" {
  description = "A way out to the internet, for installing packages. It costs by the hour and by the byte; S3 does not go through it."
  type        = bool
  default     = false
}

# -- the machines ------------------------------------------------------------------------------------------------------

variable "num_instances" {
  description = "How many machines. Two or more share a placement group and may talk to each other."
  type        = number
  default     = 1

  validation {
    condition     = var.num_instances >= 0 && var.num_instances <= 64 && floor(var.num_instances) == var.num_instances
    error_message = "num_instances is a whole number from 0 (the data alone) to 64."
  }
}

variable "instance_type" {
  description = "A type with GPUs and local NVMe drives."
  type        = string
  default     = "g5.xlarge"

  validation {
    condition     = can(regex("^(g4dn|g5|g6|g6e|gr6|p3dn|p4d|p4de|p5|p5e|p5en|p6-b200)\\.[0-9a-z]+$", var.instance_type))
    error_message = "Of the GPU families, those with local NVMe are g4dn, g5, g6, g6e, gr6, p3dn, p4d, p4de, p5, p5e, p5en and p6-b200."
  }
}

variable "spot" {
  description = "Ask for spot capacity: cheaper, and taken away at two minutes' notice. Resuming costs no replay."
  type        = bool
  default     = false
}

variable "ami_id" {
  description = "Image of the machines: Debian or Ubuntu with systemd, Python 3.11 or later and NVIDIA's driver. Null: what ami_parameter says at launch."
  type        = string
  default     = null

  validation {
    condition     = var.ami_id == null || can(regex("^ami-[0-9a-f]{8,17}$", var.ami_id))
    error_message = "An image's id looks like ami-0123456789abcdef0."
  }
}

variable "ami_parameter" {
  description = "Public parameter that names the newest Deep Learning base image."
  type        = string
  default     = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"

  validation {
    condition     = startswith(var.ami_parameter, "/aws/service/")
    error_message = "ami_parameter is one of Amazon's public parameters, /aws/service/…."
  }
}

variable "root_volume_gib" {
  description = "Size of the root volume. Data go to the local NVMe drives."
  type        = number
  default     = 100

  validation {
    condition     = var.root_volume_gib >= 40
    error_message = "The image alone takes 40 GiB."
  }
}

variable "training_user" {
  description = "User of the image who trains and owns the cache."
  type        = string
  default     = "ubuntu"

  validation {
    condition     = can(regex("^[a-z_][a-z0-9_-]{0,31}$", var.training_user)) && var.training_user != "root"
    error_message = "training_user is an ordinary user's name, and not root."
  }
}

variable "cache_mount" {
  description = "Where the local drives are mounted."
  type        = string
  default     = "/nvme"

  validation {
    condition     = can(regex("^(/[A-Za-z0-9_-]+)+$", var.cache_mount))
    error_message = "cache_mount is an absolute path of letters, digits, '_' and '-'."
  }
}

variable "package" {
  description = "What pip installs on the machines."
  type        = string
  default     = "concurrent-loader"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9._-]*(\\[[a-z,]+\\])?((==|>=|~=)[0-9][0-9A-Za-z.]*)?$", var.package))
    error_message = "package is a requirement such as concurrent-loader or concurrent-loader==0.1.0."
  }
}

variable "wheels_prefix" {
  description = "Where in the bucket a folder of wheels lies; pip then asks no index, and no way out is needed. Empty: from the index."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*)?$", var.wheels_prefix))
    error_message = "wheels_prefix is made as prefix is."
  }
}

variable "tags" {
  description = "On all that can be tagged."
  type        = map(string)
  default     = {}
}
