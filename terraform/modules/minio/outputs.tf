output "dataset_url" {
  description = "What ShardDataset and concurrent-loader take."
  value       = var.prefix == "" ? "s3://${minio_s3_bucket.data.bucket}" : "s3://${minio_s3_bucket.data.bucket}/${var.prefix}"
}

output "storage_options" {
  description = "The store's options that are no secret."
  value       = { endpoint_url = var.endpoint_url, region = var.region }
}

output "reader_access_key_id" {
  description = "The reader's name, which is its access key."
  value       = minio_iam_user.reader.name
}

output "reader_secret_access_key" {
  description = "The reader's secret."
  value       = minio_iam_user.reader.secret
  sensitive   = true
}

output "writer_access_key_id" {
  description = "The writer's name, which is its access key."
  value       = minio_iam_user.writer.name
}

output "writer_secret_access_key" {
  description = "The writer's secret."
  value       = minio_iam_user.writer.secret
  sensitive   = true
}
