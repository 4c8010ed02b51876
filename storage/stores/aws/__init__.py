"""AWS credentials, settings and request signatures."""
