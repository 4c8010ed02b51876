"""Worker processes: the same pipeline in N processes, and the channel between them and the loader."""
