"""Ours and everybody else's loader on the same images from the same bucket: ``python -m benchmarks.peers``.

`benchmarks.peers.__main__` says what is measured; `benchmarks.peers.catalog` who takes part, in which settings.
"""
