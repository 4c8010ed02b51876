"""Wraps the image libraries in one interface: one module per library, and `libraries.py` to choose one."""
