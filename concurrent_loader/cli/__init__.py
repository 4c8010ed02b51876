"""Implements the command line: one module per command, and `app.py`, which registers them."""
