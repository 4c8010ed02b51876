"""Ends the fork server without the teardown of the interpreter. Only the fork server imports this module.

The teardown takes about a second, because the server has imported torch. The server holds the program's standard output
open during that time, so a shell pipeline or ``subprocess.run(capture_output=True)`` would wait for it.
"""

from __future__ import annotations

import atexit
import os
import sys

_pid = os.getpid()


@atexit.register
def _exit_quickly() -> None:
    if os.getpid() != _pid:  # a child of the server ends in its own way
        return
    atexit.unregister(_exit_quickly)
    # This function was registered last, so it runs first. The program's modules may have registered others.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # the program has no such stream, or its reader has gone
    os._exit(0)
