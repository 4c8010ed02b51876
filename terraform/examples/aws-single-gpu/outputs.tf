output "dataset_url" {
  description = "What ShardDataset and concurrent-loader take."
  value       = module.training.dataset_url
}

output "storage_options" {
  description = "The store's options."
  value       = module.training.storage_options
}

output "cache_dir" {
  description = "On the machines: the cache folder on their local drives."
  value       = module.training.cache_dir
}

output "writer_role_arn" {
  description = "The role to take for ingesting, or null."
  value       = module.training.writer_role_arn
}

output "instance_ids" {
  description = "For aws ssm start-session --target."
  value       = module.training.instance_ids
}
