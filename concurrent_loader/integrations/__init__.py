"""Loader classes for other tools. Import the module of a tool; it needs the tool to be installed."""
