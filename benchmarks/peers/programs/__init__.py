"""One peer a module: how its documentation says to write its format, and to read it fast."""
