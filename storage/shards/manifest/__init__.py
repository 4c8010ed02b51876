"""The snapshot of a dataset: which shards, with which sizes and digests."""
