"""Writes samples as shards to a store."""
