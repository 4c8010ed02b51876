"""Changes a dataset by a new snapshot: deletes samples, and writes shards again without deleted ones."""
