"""A local S3 server that can be frozen, killed and started again: at the same address, with the same objects.

Linux only: the server's process is found by ``/proc``.
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

from storage.testing.failures import ServerFailed
from storage.testing.local_s3 import LocalS3, new_credentials
from storage.testing.processes import SupervisedProcess
from storage.testing.programs import Kind, ServerProgram, find_program
from storage.testing.starting import start_server

__all__ = ["MortalS3", "mortal_s3"]

_REGION = "us-east-1"
_FREEZE_S = 5.0
_POLL_S = 0.002


class MortalS3:
    """A server and its life; made by `mortal_s3`. Use it from one thread.

    Attributes:
        server: The way in; the same before and after a restart.
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
        """Stops the process (SIGSTOP): connections are accepted by the kernel and never answered.

        Raises:
            ServerFailed: It is dead.
        """
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        # The signal stops one thread after the other, and any of them may still answer.
        deadline = time.monotonic() + _FREEZE_S
        while any(_fields(stat)[0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            if time.monotonic() > deadline:
                raise ServerFailed("the server does not freeze", url=self.server.endpoint_url)
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        """Lets it go on (SIGCONT)."""
        os.kill(self._pid(), signal.SIGCONT)

    def kill(self) -> None:
        """Kills it (SIGKILL): connections are reset, new ones refused. Nothing happens if it is dead."""
        if not self._process.wait(0):
            os.kill(self._pid(), signal.SIGKILL)
            self._process.stop()

    def restart(self) -> None:
        """Starts it again, where it was; a living one is killed first.

        Raises:
            ServerFailed: It does not answer, or somebody has taken its port.
        """
        self.kill()
        port = urlsplit(self.server.endpoint_url).port
        self._process, _ = start_server(self._program, self._spawn, self._credentials, region=_REGION, port=port)

    def forget(self) -> None:
        """Deletes all buckets behind the back of a server that is dead."""
        shutil.rmtree(self._data)
        self._data.mkdir()

    def end(self) -> None:
        """Ends it for good."""
        if not self._process.wait(0):
            self.thaw()  # a frozen process does not hear that it is to end
        self._process.stop()

    def _spawn(self, command: list[str], environment: dict[str, str]) -> SupervisedProcess:
        return SupervisedProcess(command, environment=environment, log=self._log)

    def _pid(self) -> int:
        """The server's: the only child of its supervisor."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            if _fields(stat)[1] == str(self._process.pid):
                return int(stat.parent.name)
        raise ServerFailed("the server is dead", url=self.server.endpoint_url, got=self._process.log_text())


def _fields(stat: Path) -> list[str]:
    """State, parent and so on, proc(5); what is gone meanwhile has stopped, too."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["T", ""]


@contextmanager
def mortal_s3(*, kinds: tuple[Kind, ...] = ("minio",), build: bool = True) -> Iterator[MortalS3]:
    """Hands out a server of one's own, for as long as the ``with`` block lasts.

    Args:
        kinds: Which are welcome; moto forgets its objects when it dies.
        build: Whether MinIO may be built if it is not here.

    Raises:
        ToolUnavailable: None of the kinds can be started here.
        ServerFailed: It did not start.
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
