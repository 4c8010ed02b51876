"""Faults in front of a store: in the process, on the wire, in HTTP."""
