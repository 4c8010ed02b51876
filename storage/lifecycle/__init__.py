"""The life of a dataset after it was written: its snapshots, tags, copies, and what garbage collection deletes."""
