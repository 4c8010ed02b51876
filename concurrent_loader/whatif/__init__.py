"""Predicts how fast a recorded run would be with other cores, latencies, caches and consumers."""
