"""What stands beside the data's way and times it: the demo and the benchmarks, ``python -m benchmarks.NAME``.

Nothing here is imported by `storage` or `concurrent_loader`, and none of it is in the wheel.
"""
