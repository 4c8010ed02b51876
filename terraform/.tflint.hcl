config {
  call_module_type = "local"
}

plugin "terraform" {
  enabled = true
  preset  = "all"
}

# Modules are cut by what they make, one noun a file, and have no main.tf.
rule "terraform_standard_module_structure" {
  enabled = false
}
