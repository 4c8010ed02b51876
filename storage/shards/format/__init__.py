"""The bytes of a shard: layout, columns, values. No I/O."""
