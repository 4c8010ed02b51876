"""One module per foreign format that is read in place."""
