# One GPU machine beside its bucket, and a role that ingests.

terraform {
  required_version = ">= 1.6"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60, < 7.0"
    }
  }
}

provider "aws" {
  region = var.region
}

module "training" {
  source = "../../modules/aws"

  name              = var.name
  bucket            = var.bucket
  prefix            = "photos"
  availability_zone = "${var.region}${var.zone}"
  writer_principals = var.writer_principals
  prevent_destroy   = var.prevent_destroy

  instance_type = var.instance_type
  num_instances = 1
  spot          = var.spot
  nat_gateway   = true # the machines install from an index; see wheels_prefix for the way without
}
