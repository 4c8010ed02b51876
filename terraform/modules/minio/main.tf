# A bucket for a data set, and two users: one that reads it, one that writes it. For clusters on premises and for trying
# things on a laptop. The server itself is not made here.

locals {
  objects      = var.prefix == "" ? "arn:aws:s3:::${var.bucket}/*" : "arn:aws:s3:::${var.bucket}/${var.prefix}/*"
  list_pattern = var.prefix == "" ? ["*"] : [var.prefix, "${var.prefix}/*"]

  read_statements = [
    {
      Sid       = "List"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = ["arn:aws:s3:::${var.bucket}"]
      Condition = { StringLike = { "s3:prefix" = local.list_pattern } }
    },
    {
      Sid      = "Region"
      Effect   = "Allow"
      Action   = ["s3:GetBucketLocation"]
      Resource = ["arn:aws:s3:::${var.bucket}"]
    },
    {
      Sid      = "Read"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = [local.objects]
    },
  ]

  # No delete: a data set is a row of immutable snapshots, and a writer's keys that leak destroy nothing. What is
  # overwritten stays as a version.
  write_statements = [
    {
      Sid      = "Write"
      Effect   = "Allow"
      Action   = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
      Resource = [local.objects]
    },
  ]
}

resource "minio_s3_bucket" "data" {
  bucket        = var.bucket
  acl           = "private"
  force_destroy = var.force_destroy
}

resource "minio_s3_bucket_versioning" "data" {
  bucket = minio_s3_bucket.data.bucket

  versioning_configuration {
    status = var.versioning ? "Enabled" : "Suspended"
  }
}

# MinIO drops uploads that nobody finishes by itself, after a day; it has no lifecycle rule for them.
resource "minio_ilm_policy" "data" {
  count  = var.versioning ? 1 : 0
  bucket = minio_s3_bucket_versioning.data.bucket

  rule {
    id = "old-versions"

    noncurrent_expiration {
      days = "${var.noncurrent_days}d"
    }
  }

  rule {
    id         = "delete-markers"
    expiration = "DeleteMarker"
  }
}

resource "minio_iam_policy" "reader" {
  name   = "${var.bucket}-reader"
  policy = jsonencode({ Version = "2012-10-17", Statement = local.read_statements })
}

resource "minio_iam_policy" "writer" {
  name   = "${var.bucket}-writer"
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.read_statements, local.write_statements) })
}

# The server makes the secrets up. They are in the state, which is the only place they can be handed over from.
resource "minio_iam_user" "reader" {
  name = "${var.bucket}-reader"
}

resource "minio_iam_user" "writer" {
  name = "${var.bucket}-writer"
}

resource "minio_iam_user_policy_attachment" "reader" {
  user_name   = minio_iam_user.reader.name
  policy_name = minio_iam_policy.reader.name
}

resource "minio_iam_user_policy_attachment" "writer" {
  user_name   = minio_iam_user.writer.name
  policy_name = minio_iam_policy.writer.name
}
