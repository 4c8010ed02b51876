"""Adopts data of other formats in place: an index of virtual shards, whose payload stays where it is."""
