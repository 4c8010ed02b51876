"""Datasets: shards or objects in a bucket, views of them, and mixtures."""
