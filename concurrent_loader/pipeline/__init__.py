"""The pipeline: makes one epoch's batches in one process."""
