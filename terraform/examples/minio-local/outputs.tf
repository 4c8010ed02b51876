output "dataset_url" {
  description = "What ShardDataset and concurrent-loader take."
  value       = module.data.dataset_url
}

output "storage_options" {
  description = "The store's options that are no secret."
  value       = module.data.storage_options
}

output "reader_access_key_id" {
  description = "The reader's access key."
  value       = module.data.reader_access_key_id
}

output "reader_secret_access_key" {
  description = "The reader's secret."
  value       = module.data.reader_secret_access_key
  sensitive   = true
}

output "writer_access_key_id" {
  description = "The writer's access key."
  value       = module.data.writer_access_key_id
}

output "writer_secret_access_key" {
  description = "The writer's secret."
  value       = module.data.writer_secret_access_key
  sensitive   = true
}

output "reader_environment" {
  description = "Lines for a shell that trains: eval \"$(terraform output -raw reader_environment)\"."
  sensitive   = true
  value       = <<-EOT
    export AWS_ENDPOINT_URL='${module.data.storage_options.endpoint_url}'
    export AWS_REGION='${module.data.storage_options.region}'
    export AWS_ACCESS_KEY_ID='${module.data.reader_access_key_id}'
    export AWS_SECRET_ACCESS_KEY='${module.data.reader_secret_access_key}'
  EOT
}

output "writer_environment" {
  description = "The same for a shell that ingests."
  sensitive   = true
  value       = <<-EOT
    export AWS_ENDPOINT_URL='${module.data.storage_options.endpoint_url}'
    export AWS_REGION='${module.data.storage_options.region}'
    export AWS_ACCESS_KEY_ID='${module.data.writer_access_key_id}'
    export AWS_SECRET_ACCESS_KEY='${module.data.writer_secret_access_key}'
  EOT
}
