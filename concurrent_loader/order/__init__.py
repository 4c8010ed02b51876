"""Computes the order of samples in an epoch: pure functions, without I/O."""
