"""What a loader does, for people and monitoring systems: snapshots, adapters, the live view."""
