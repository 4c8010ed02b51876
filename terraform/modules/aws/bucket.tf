# The bucket: encrypted, versioned, closed to the public, TLS only.

locals {
  tags        = merge({ Name = var.name, ManagedBy = "terraform" }, var.tags)
  bucket_arn  = "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}"
  objects_arn = var.prefix == "" ? "${local.bucket_arn}/*" : "${local.bucket_arn}/${var.prefix}/*"
  dataset_url = var.prefix == "" ? "s3://${var.bucket}" : "s3://${var.bucket}/${var.prefix}"
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

resource "aws_s3_bucket" "data" {
  #checkov:skip=CKV_AWS_18:Access logs go to a bucket that the account's owner chooses; CloudTrail data events are the other way
  #checkov:skip=CKV_AWS_144:A training set can be made again from its source; replication would double its cost
  #checkov:skip=CKV_AWS_145:S3's own keys unless kms_key_arn is given; see aws_s3_bucket_server_side_encryption_configuration
  #checkov:skip=CKV2_AWS_62:Nothing listens for events; data sets are committed by their manifest
  bucket        = var.bucket
  force_destroy = false # what holds data is not deleted by the way
  tags          = local.tags
}

resource "aws_s3_bucket_ownership_controls" "data" {
  bucket = aws_s3_bucket.data.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "data" {
  bucket                  = aws_s3_bucket.data.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "data" {
  bucket = aws_s3_bucket.data.id

  rule {
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_versioning" "data" {
  bucket = aws_s3_bucket.data.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "data" {
  bucket     = aws_s3_bucket.data.id
  depends_on = [aws_s3_bucket_versioning.data]

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
  }

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [local.bucket_arn, "${local.bucket_arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }

  statement {
    sid       = "ModernTlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [local.bucket_arn, "${local.bucket_arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "NumericLessThan"
      variable = "s3:TlsVersion"
      values   = ["1.2"]
    }
  }
}

resource "aws_s3_bucket_policy" "data" {
  bucket     = aws_s3_bucket.data.id
  policy     = data.aws_iam_policy_document.bucket.json
  depends_on = [aws_s3_bucket_public_access_block.data]
}

# -- S3 Express One Zone, in the zone of the machines ------------------------------------------------------------------

resource "aws_s3_directory_bucket" "express" {
  count         = var.express ? 1 : 0
  bucket        = "${var.bucket}--${data.aws_availability_zone.here.zone_id}--x-s3"
  force_destroy = false

  location {
    name = data.aws_availability_zone.here.zone_id
    type = "AvailabilityZone"
  }
}
