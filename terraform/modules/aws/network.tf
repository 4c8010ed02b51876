# A network with no way in. S3 is reached through a gateway endpoint, which is free and passes no NAT; Session Manager
# through interface endpoints. The way out to the internet is optional.

locals {
  endpoint_services = var.num_instances > 0 ? toset(["ssm", "ssmmessages", "ec2messages"]) : toset([])
}

data "aws_availability_zone" "here" {
  name = var.availability_zone
}

resource "aws_vpc" "this" {
  #checkov:skip=CKV2_AWS_11:Flow logs are priced by volume and training moves terabytes; nothing can come in from outside
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = local.tags
}

# The default group lets members talk to each other; nothing is to be a member.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
  tags   = local.tags
}

resource "aws_subnet" "private" {
  vpc_id                  = aws_vpc.this.id
  cidr_block              = cidrsubnet(var.vpc_cidr, 1, 0)
  availability_zone       = var.availability_zone
  map_public_ip_on_launch = false
  tags                    = merge(local.tags, { Name = "${var.name}-private" })
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.this.id
  tags   = merge(local.tags, { Name = "${var.name}-private" })
}

resource "aws_route_table_association" "private" {
  subnet_id      = aws_subnet.private.id
  route_table_id = aws_route_table.private.id
}

# -- S3 ----------------------------------------------------------------------------------------------------------------

data "aws_iam_policy_document" "s3_endpoint" {
  statement {
    sid       = "DataBucket"
    effect    = "Allow"
    actions   = ["s3:ListBucket", "s3:GetBucketLocation", "s3:GetObject"]
    resources = [local.bucket_arn, "${local.bucket_arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }
  }
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id]
  policy            = data.aws_iam_policy_document.s3_endpoint.json
  tags              = merge(local.tags, { Name = "${var.name}-s3" })
}

data "aws_iam_policy_document" "express_endpoint" {
  count = var.express ? 1 : 0

  statement {
    sid       = "ExpressBucket"
    effect    = "Allow"
    actions   = ["s3express:CreateSession"]
    resources = [aws_s3_directory_bucket.express[0].arn]

    principals {
      type        = "*"
      identifiers = ["*"]
    }
  }
}

resource "aws_vpc_endpoint" "express" {
  count             = var.express ? 1 : 0
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3express"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id]
  policy            = data.aws_iam_policy_document.express_endpoint[0].json
  tags              = merge(local.tags, { Name = "${var.name}-s3express" })
}

# -- Session Manager ---------------------------------------------------------------------------------------------------

resource "aws_security_group" "endpoints" {
  name        = "${var.name}-endpoints"
  description = "HTTPS from the machines to AWS's own endpoints"
  vpc_id      = aws_vpc.this.id
  tags        = merge(local.tags, { Name = "${var.name}-endpoints" })
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id            = aws_security_group.endpoints.id
  referenced_security_group_id = aws_security_group.machines.id
  description                  = "HTTPS from the machines"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_endpoint" "interface" {
  for_each            = local.endpoint_services
  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${data.aws_region.current.id}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = [aws_subnet.private.id]
  security_group_ids  = [aws_security_group.endpoints.id]
  private_dns_enabled = true
  tags                = merge(local.tags, { Name = "${var.name}-${each.key}" })
}

# -- the machines' own group: nothing comes in -------------------------------------------------------------------------

resource "aws_security_group" "machines" {
  #checkov:skip=CKV2_AWS_5:It is attached by the launch template, which the check does not follow
  name        = "${var.name}-machines"
  description = "Training machines: out to S3 and AWS's endpoints, nothing in"
  vpc_id      = aws_vpc.this.id
  tags        = merge(local.tags, { Name = "${var.name}-machines" })
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  security_group_id = aws_security_group.machines.id
  prefix_list_id    = aws_vpc_endpoint.s3.prefix_list_id
  description       = "S3, through its gateway endpoint"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "express" {
  count             = var.express ? 1 : 0
  security_group_id = aws_security_group.machines.id
  prefix_list_id    = aws_vpc_endpoint.express[0].prefix_list_id
  description       = "S3 Express, through its gateway endpoint"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "endpoints" {
  security_group_id            = aws_security_group.machines.id
  referenced_security_group_id = aws_security_group.endpoints.id
  description                  = "AWS's interface endpoints"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_security_group_egress_rule" "internet" {
  count             = var.nat_gateway ? 1 : 0
  security_group_id = aws_security_group.machines.id
  cidr_ipv4         = "0.0.0.0/0"
  description       = "HTTPS, for installing packages"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

# Several machines of one training run: NCCL and torchrun take any port, among themselves alone.
resource "aws_vpc_security_group_ingress_rule" "peers" {
  count                        = var.num_instances > 1 ? 1 : 0
  security_group_id            = aws_security_group.machines.id
  referenced_security_group_id = aws_security_group.machines.id
  description                  = "Machines of the same run"
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "peers" {
  count                        = var.num_instances > 1 ? 1 : 0
  security_group_id            = aws_security_group.machines.id
  referenced_security_group_id = aws_security_group.machines.id
  description                  = "Machines of the same run"
  ip_protocol                  = "-1"
}

# -- the optional way out ----------------------------------------------------------------------------------------------

resource "aws_subnet" "public" {
  count                   = var.nat_gateway ? 1 : 0
  vpc_id                  = aws_vpc.this.id
  cidr_block              = cidrsubnet(var.vpc_cidr, 4, 8)
  availability_zone       = var.availability_zone
  map_public_ip_on_launch = false
  tags                    = merge(local.tags, { Name = "${var.name}-nat" })
}

resource "aws_internet_gateway" "this" {
  count  = var.nat_gateway ? 1 : 0
  vpc_id = aws_vpc.this.id
  tags   = local.tags
}

resource "aws_eip" "nat" {
  count  = var.nat_gateway ? 1 : 0
  domain = "vpc"
  tags   = merge(local.tags, { Name = "${var.name}-nat" })
}

resource "aws_nat_gateway" "this" {
  count         = var.nat_gateway ? 1 : 0
  allocation_id = aws_eip.nat[0].id
  subnet_id     = aws_subnet.public[0].id
  tags          = local.tags
  depends_on    = [aws_internet_gateway.this]
}

resource "aws_route_table" "public" {
  count  = var.nat_gateway ? 1 : 0
  vpc_id = aws_vpc.this.id
  tags   = merge(local.tags, { Name = "${var.name}-nat" })
}

resource "aws_route_table_association" "public" {
  count          = var.nat_gateway ? 1 : 0
  subnet_id      = aws_subnet.public[0].id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_route" "public" {
  count                  = var.nat_gateway ? 1 : 0
  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route" "private" {
  count                  = var.nat_gateway ? 1 : 0
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[0].id
}
