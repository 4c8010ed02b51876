"""Fork server of the worker processes: starts it, and explains why it ended.

Python's fork server is a ``python -c`` process, which searches its working directory for modules first. A file there
with the name of a library (``numpy.py``) would end the server, or be imported in place of the library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, spawn
from multiprocessing.context import BaseContext

from concurrent_loader.errors import LoaderError
from concurrent_loader.storage.redaction import redact

__all__ = ["NO_GUARD", "restore_environment", "starting"]

NO_GUARD = "the script starts its work while it is imported (move it below if __name__ == '__main__')"

_DIAGNOSIS_S = 60.0
_BEFORE = "CONCURRENT_LOADER_ENVIRONMENT_BEFORE"  # variable of the server: the loader's environment, as JSON
_SERVED = "concurrent_loader.workers.worker_main"
_IMPORT = f"""
import sys
from multiprocessing import process, spawn
if len(sys.argv) > 1:
    process.current_process()._inheriting = True
    spawn.import_main_path(sys.argv[1])
import {_SERVED}
"""

_environment = threading.Lock()


@contextmanager
def starting(context: BaseContext) -> Iterator[None]:
    """Starts the fork server, if the context needs one, for a block that starts a process.

    Raises:
        LoaderError: The server has ended. The message quotes the import that failed there.
    """
    if context.get_start_method() != "forkserver":
        yield
        return
    with _search_path():
        forkserver.ensure_running()
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise LoaderError(_cause(), stage="worker") from error


def restore_environment() -> None:
    """Removes the variables meant for the server from the environment of a worker."""
    before = json.loads(os.environ.pop(_BEFORE, "{}"))
    _set({name: value for name, value in before.items() if name != _BEFORE})


@contextmanager
def _search_path() -> Iterator[None]:
    """Makes Python processes started in the block search for modules exactly where this process does."""
    ours = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with _environment:
        before = {name: os.environ.get(name) for name in (*ours, _BEFORE)}
        _set({**ours, _BEFORE: json.dumps(before)})
        try:
            yield
        finally:
            _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cause() -> str:
    """Finds out why the server has ended, by repeating its imports in a new process."""
    what = "the process that forks workers ended before it could fork one"
    main_path = spawn.get_preparation_data("diagnosis").get("init_main_from_path")
    command = [sys.executable, "-c", _IMPORT, *([] if main_path is None else [main_path])]
    try:
        with _search_path():
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_DIAGNOSIS_S, check=False
            )
    except (OSError, subprocess.TimeoutExpired):
        return f"{what}; its standard error says why"
    if not done.returncode:
        return f"{what}, although its imports succeed; its standard error may say why"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any("_check_not_importing_main" in line for line in lines):  # Python 3.14 imports the script in the server
        return f"{what}: {NO_GUARD}"
    places = [line for line in lines if line.startswith("File ")]
    why = redact(" ".join((*lines[-1:], f"({places[-1]})" if places else "")))
    return (
        f"{what}: an import failed there: {why}; fix or rename that module, or pass multiprocessing_context='spawn' "
        "where only this server cannot import it"
    )
