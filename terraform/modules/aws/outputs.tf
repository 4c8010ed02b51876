output "dataset_url" {
  description = "What ShardDataset and concurrent-loader take."
  value       = local.dataset_url
}

output "storage_options" {
  description = "The store's options; keys come from the machines' role."
  value       = { region = data.aws_region.current.id }
}

output "cache_dir" {
  description = "On the machines: the cache folder on their local drives."
  value       = local.cache_dir
}

output "bucket_arn" {
  description = "The bucket."
  value       = aws_s3_bucket.data.arn
}

output "express_bucket" {
  description = "Name of the directory bucket, or null."
  value       = one(aws_s3_directory_bucket.express[*].bucket)
}

output "reader_role_arn" {
  description = "The machines' role."
  value       = aws_iam_role.reader.arn
}

output "writer_role_arn" {
  description = "The role to take for ingesting, or null."
  value       = one(aws_iam_role.writer[*].arn)
}

output "instance_ids" {
  description = "The machines: aws ssm start-session --target ID."
  value       = aws_instance.this[*].id
}

output "private_ips" {
  description = "Their addresses among themselves; the first is torchrun's rendezvous."
  value       = aws_instance.this[*].private_ip
}
