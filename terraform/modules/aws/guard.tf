# Terraform takes only a literal for prevent_destroy, so the switch is a resource of its own: a plan that would destroy
# or replace it is refused as a whole, before anything is touched. Renaming the bucket replaces it.

resource "terraform_data" "guard" {
  count            = var.prevent_destroy ? 1 : 0
  triggers_replace = var.bucket

  lifecycle {
    prevent_destroy = true
  }
}
