# The machines: GPU and local NVMe, IMDSv2, no key pair, no public address, reached by Session Manager alone.

locals {
  cache_dir = "${var.cache_mount}/cache"

  # The same shape as `terraform output -json`, so that `concurrent-loader doctor --terraform` reads it on the machine.
  profile = jsonencode({
    dataset_url     = { value = local.dataset_url }
    storage_options = { value = { region = data.aws_region.current.id } }
    cache_dir       = { value = local.cache_dir }
  })

  settings = <<-EOT
    BUCKET='${var.bucket}'
    CACHE_DIR='${local.cache_dir}'
    DATASET_URL='${local.dataset_url}'
    MOUNT_POINT='${var.cache_mount}'
    PACKAGE='${var.package}'
    REGION='${data.aws_region.current.id}'
    TRAINING_USER='${var.training_user}'
    WHEELS_PREFIX='${var.wheels_prefix}'
  EOT

  user_data = templatefile("${path.module}/user_data.sh.tftpl", {
    settings = base64encode(local.settings)
    profile  = base64encode(local.profile)
    nvme     = base64encode(file("${path.module}/scripts/nvme.sh"))
    service  = base64encode(file("${path.module}/scripts/concurrent-loader-nvme.service"))
    setup    = base64encode(file("${path.module}/scripts/setup.sh"))
  })
}

resource "aws_placement_group" "this" {
  count    = var.num_instances > 1 ? 1 : 0
  name     = var.name
  strategy = "cluster"
  tags     = local.tags
}

resource "aws_launch_template" "this" {
  name_prefix            = "${var.name}-"
  description            = "Training machine: GPU, local NVMe, reader of ${local.dataset_url}"
  image_id               = var.ami_id == null ? "resolve:ssm:${var.ami_parameter}" : var.ami_id
  instance_type          = var.instance_type
  ebs_optimized          = true
  update_default_version = true
  user_data              = base64gzip(local.user_data)
  tags                   = local.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.reader.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # containers on the machine do not get its role
    instance_metadata_tags      = "disabled"
  }

  network_interfaces {
    associate_public_ip_address = false
    delete_on_termination       = true
    security_groups             = [aws_security_group.machines.id]
    subnet_id                   = aws_subnet.private.id
  }

  block_device_mappings {
    device_name = "/dev/sda1"

    ebs {
      delete_on_termination = true
      encrypted             = true
      volume_size           = var.root_volume_gib
      volume_type           = "gp3"
    }
  }

  monitoring {
    enabled = true
  }

  dynamic "instance_market_options" {
    for_each = var.spot ? [1] : []

    content {
      market_type = "spot"

      spot_options {
        spot_instance_type             = "one-time"
        instance_interruption_behavior = "terminate"
      }
    }
  }

  dynamic "placement" {
    for_each = aws_placement_group.this[*].name

    content {
      group_name = placement.value
    }
  }

  tag_specifications {
    resource_type = "instance"
    tags          = local.tags
  }

  tag_specifications {
    resource_type = "volume"
    tags          = local.tags
  }

  lifecycle {
    precondition {
      condition     = var.num_instances == 0 || var.nat_gateway || var.wheels_prefix != ""
      error_message = "The machines install the package from an index (set nat_gateway = true) or from wheels in the bucket (set wheels_prefix)."
    }
  }
}

resource "aws_instance" "this" {
  #checkov:skip=CKV_AWS_8:The launch template encrypts the root volume; the check does not follow it
  #checkov:skip=CKV_AWS_79:The launch template requires IMDSv2; the check does not follow it
  #checkov:skip=CKV_AWS_126:The launch template turns detailed monitoring on; the check does not follow it
  #checkov:skip=CKV_AWS_135:The launch template asks for EBS optimisation; the check does not follow it
  #checkov:skip=CKV2_AWS_41:The launch template names the instance profile; the check does not follow it
  count = var.num_instances
  tags  = merge(local.tags, { Name = "${var.name}-${count.index}" })

  launch_template {
    id      = aws_launch_template.this.id
    version = aws_launch_template.this.latest_version
  }

  # The first boot fetches from S3 and says that it is there through the endpoints.
  depends_on = [
    aws_iam_role_policy.reader,
    aws_route_table_association.private,
    aws_vpc_endpoint.s3,
    aws_vpc_endpoint.interface,
    aws_route.private,
    aws_vpc_security_group_egress_rule.s3,
  ]
}
