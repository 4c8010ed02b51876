"""Batches, their buffers, and the handling of images that fail to decode."""
