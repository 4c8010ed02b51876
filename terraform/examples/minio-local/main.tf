# A bucket on a MinIO that runs already, with a reader and a writer.

terraform {
  required_version = ">= 1.6"

  required_providers {
    minio = {
      source  = "aminueza/minio"
      version = "~> 3.3"
    }
  }
}

# Who administers the server is told by MINIO_USER and MINIO_PASSWORD, so that neither is in a file or in the state.
provider "minio" {
  minio_server = split("://", var.endpoint_url)[1]
  minio_ssl    = startswith(var.endpoint_url, "https://")
  minio_region = var.region
}

module "data" {
  source = "../../modules/minio"

  bucket        = var.bucket
  prefix        = var.prefix
  endpoint_url  = var.endpoint_url
  region        = var.region
  force_destroy = true # to try things with; leave it out where the data matters
}
