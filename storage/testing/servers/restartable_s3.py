"""A local S3 server that can be frozen, killed and restarted at the same address with the same objects.

Linux only, because the server's process is found in ``/proc``.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from botocore.credentials import Credentials

from concurrent_loader.storage.testing.servers.errors import ServerFailed
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3, new_credentials
from concurrent_loader.storage.testing.servers.processes import SupervisedProcess
from concurrent_loader.storage.testing.servers.programs import Kind, ServerProgram, find_program
from concurrent_loader.storage.testing.servers.startup import start_server

__all__ = ["MortalS3", "mortal_s3"]

_REGION = "us-east-1"
_FREEZE_S = 5.0
_POLL_S = 0.002


class MortalS3:
    """A server that can be frozen, killed and restarted; created by `mortal_s3`. Usable from one thread.

    Attributes:
        server: Address and credentials, which a restart does not change.

    Example:
        >>> from concurrent_loader.storage.testing import mortal_s3
        >>> with mortal_s3() as mortal:  # doctest: +SKIP
        ...     mortal.kill()
        ...     mortal.restart()
    """

    def __init__(self, program: ServerProgram, credentials: Credentials, folder: Path) -> None:
        self._program = program
        self._credentials = credentials
        self._log = folder / "server.log"
        self._data = folder / "data"
        self._data.mkdir()
        self._process, url = start_server(program, self._spawn, credentials, region=_REGION)
        self.server = LocalS3(url, program.kind, credentials.access_key, credentials.secret_key, origin=program.origin)

    def freeze(self) -> None:
        """Freezes the process (SIGSTOP): the kernel accepts connections, but the server never responds.

        Raises:
            ServerFailed: The server is not running.
        """
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        # The signal stops one thread after another, and any of them may still respond.
        deadline = time.monotonic() + _FREEZE_S
        while any(_fields(stat)[0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            if time.monotonic() > deadline:
                raise ServerFailed("the server could not be frozen", url=self.server.endpoint_url)
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        """Continues a frozen process (SIGCONT)."""
        os.kill(self._pid(), signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process (SIGKILL), which resets connections; does nothing if it is not running."""
        if not self._process.wait(0):
            os.kill(self._pid(), signal.SIGKILL)
            self._process.stop()

    def restart(self) -> None:
        """Starts the server again at the same address; kills a running one first.

        Raises:
            ServerFailed: The server does not respond, or another program has taken the port.
        """
        self.kill()
        port = urlsplit(self.server.endpoint_url).port
        self._process, _ = start_server(self._program, self._spawn, self._credentials, region=_REGION, port=port)

    def forget(self) -> None:
        """Deletes all buckets while the server is not running."""
        shutil.rmtree(self._data)
        self._data.mkdir()

    def end(self) -> None:
        """Ends the server permanently."""
        if not self._process.wait(0):
            self.thaw()  # a frozen process would not react
        self._process.stop()

    def _spawn(self, command: list[str], environment: dict[str, str]) -> SupervisedProcess:
        return SupervisedProcess(command, environment=environment, log=self._log)

    def _pid(self) -> int:
        """Returns the server's process id: the only child of its supervisor."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            if _fields(stat)[1] == str(self._process.pid):
                return int(stat.parent.name)
        raise ServerFailed("the server is not running", url=self.server.endpoint_url, got=self._process.log_text())


def _fields(stat: Path) -> list[str]:
    """Returns the fields from the state on, see proc(5); a process that has ended counts as stopped."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["T", ""]


@contextmanager
def mortal_s3(*, kinds: tuple[Kind, ...] = ("minio",), build: bool = True) -> Iterator[MortalS3]:
    """Provides a restartable server during the ``with`` block.

    Args:
        kinds: Accepted kinds of servers; moto loses its objects when it is killed.
        build: Whether MinIO may be built if it is not installed.

    Raises:
        ToolUnavailable: No kind of server can be started here.
        ServerFailed: The server did not start.

    Example:
        >>> from concurrent_loader.storage.testing import mortal_s3
        >>> with mortal_s3() as mortal:  # doctest: +SKIP
        ...     mortal.freeze()
        ...     mortal.thaw()
    """
    credentials = new_credentials()
    folder = Path(tempfile.mkdtemp(prefix="concurrent-loader-mortal-"))
    try:
        program = find_program(
            kinds,
            data_dir=folder / "data",
            home=folder,
            access_key_id=credentials.access_key,
            secret_access_key=credentials.secret_key,
            build=build,
            progress=None,
        )
        mortal = MortalS3(program, credentials, folder)
        try:
            yield mortal
        finally:
            mortal.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
