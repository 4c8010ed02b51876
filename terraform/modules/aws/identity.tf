# Who may do what: machines read, a role of its own writes, and KMS is mentioned only where a key is used.

locals {
  list_patterns = var.prefix == "" ? ["*"] : concat(
    [var.prefix, "${var.prefix}/*"],
    var.wheels_prefix == "" ? [] : ["${var.wheels_prefix}/*"],
  )
  read_arns = distinct(concat(
    [local.objects_arn],
    var.wheels_prefix == "" ? [] : ["${local.bucket_arn}/${var.wheels_prefix}/*"],
  ))
}

data "aws_iam_policy_document" "reader" {
  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket_arn]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = local.list_patterns
    }
  }

  statement {
    sid       = "Region"
    actions   = ["s3:GetBucketLocation"]
    resources = [local.bucket_arn]
  }

  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = local.read_arns
  }

  dynamic "statement" {
    for_each = aws_s3_directory_bucket.express[*].arn

    content {
      sid       = "Express"
      actions   = ["s3express:CreateSession"]
      resources = [statement.value]

      condition {
        test     = "StringEquals"
        variable = "s3express:SessionMode"
        values   = ["ReadOnly"]
      }
    }
  }

  dynamic "statement" {
    for_each = var.kms_key_arn[*]

    content {
      sid       = "Decrypt"
      actions   = ["kms:Decrypt"]
      resources = [statement.value]

      condition {
        test     = "StringEquals"
        variable = "kms:ViaService"
        values   = ["s3.${data.aws_region.current.id}.amazonaws.com"]
      }
    }
  }
}

# No delete: a data set is a row of immutable snapshots, and a writer's role that falls into wrong hands destroys
# nothing. What is overwritten stays as a version.
data "aws_iam_policy_document" "writer" {
  source_policy_documents = [data.aws_iam_policy_document.reader.json]

  statement {
    sid       = "Write"
    actions   = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    resources = [local.objects_arn]
  }

  dynamic "statement" {
    for_each = aws_s3_directory_bucket.express[*].arn

    content {
      sid       = "ExpressWrite"
      actions   = ["s3express:CreateSession"]
      resources = [statement.value]
    }
  }

  dynamic "statement" {
    for_each = var.kms_key_arn[*]

    content {
      sid       = "Encrypt"
      actions   = ["kms:GenerateDataKey"]
      resources = [statement.value]

      condition {
        test     = "StringEquals"
        variable = "kms:ViaService"
        values   = ["s3.${data.aws_region.current.id}.amazonaws.com"]
      }
    }
  }
}

# -- the machines' role: reads, and is reached by Session Manager ------------------------------------------------------

data "aws_iam_policy_document" "machine_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "reader" {
  name               = "${var.name}-reader"
  assume_role_policy = data.aws_iam_policy_document.machine_trust.json
  tags               = local.tags
}

resource "aws_iam_role_policy" "reader" {
  name   = "read-data-set"
  role   = aws_iam_role.reader.id
  policy = data.aws_iam_policy_document.reader.json
}

resource "aws_iam_role_policy_attachment" "session_manager" {
  role       = aws_iam_role.reader.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "reader" {
  name = "${var.name}-reader"
  role = aws_iam_role.reader.name
  tags = local.tags
}

# -- the writer's role: taken by those who ingest ----------------------------------------------------------------------

data "aws_iam_policy_document" "writer_trust" {
  count = length(var.writer_principals) > 0 ? 1 : 0

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "AWS"
      identifiers = var.writer_principals
    }
  }
}

resource "aws_iam_role" "writer" {
  count              = length(var.writer_principals) > 0 ? 1 : 0
  name               = "${var.name}-writer"
  assume_role_policy = data.aws_iam_policy_document.writer_trust[0].json
  tags               = local.tags
}

resource "aws_iam_role_policy" "writer" {
  count  = length(var.writer_principals) > 0 ? 1 : 0
  name   = "write-data-set"
  role   = aws_iam_role.writer[0].id
  policy = data.aws_iam_policy_document.writer.json
}
