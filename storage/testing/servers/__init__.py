"""Local S3 servers: built, started, restarted and stopped."""
