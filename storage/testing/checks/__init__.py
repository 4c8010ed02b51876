"""Additional checks for tests: resource leaks, printed secrets, virtual time."""
