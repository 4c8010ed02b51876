variable "endpoint_url" {
  description = "Address of the server, such as http://127.0.0.1:9000."
  type        = string
  default     = "http://127.0.0.1:9000"
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string
  default     = "training"
}

variable "prefix" {
  description = "Where in the bucket the data set lies."
  type        = string
  default     = "photos"
}

variable "region" {
  description = "The server's region."
  type        = string
  default     = "us-east-1"
}
