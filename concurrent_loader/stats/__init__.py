"""Counters of a loader, and the causes of its waits."""
