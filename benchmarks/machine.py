"""Where a figure was measured: machine, versions, and how busy the machine already was."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, process_time

import psutil

from benchmarks.fresh_process import cpu_of_fresh_processes_s

_PACKAGES = ("concurrent-loader", "torch", "torchvision", "torchcodec", "numpy", "obstore", "aiobotocore", "botocore")


def describe_machine() -> dict[str, object]:
    """Returns processor, cores, memory, operating system, the load of the last minute, and the time."""
    libc = "".join(platform.libc_ver())  # as platform.platform() has it, which starts a process
    return {
        "cpu": cpu_name(),
        "num_cores": num_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()}-{platform.release()}-{platform.machine()}-with-{libc}",
        "load_before": round(os.getloadavg()[0], 2),  # processes that wanted a core; above 0.5, figures are noisy
        "measured_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }


def cpu_name() -> str:
    """Returns the name of the processor."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0].strip() if names else platform.processor() or platform.machine()


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Returns the versions of Python and of all installed packages that a figure depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_of_tree_s() -> float:
    """Returns the processor seconds of this process, its live descendants, and those that ended and were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since: its parent's figures may have it already
            # A live process's figures have its own ended children: a fork server's workers, say.
            used_s += sum(child.cpu_times()[:4])
    return used_s


def start_peak_rss() -> int:
    """Forgets the highest resident memory so far where the system can; returns the present one, in bytes."""
    clear_refs = Path("/proc/self/clear_refs")
    if clear_refs.exists():
        clear_refs.write_text("5")
    return int(psutil.Process().memory_info().rss)


def peak_rss_bytes() -> int:
    """Returns the highest resident memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def resident_bytes(processes: Iterable[psutil.Process]) -> int:
    """Returns the resident memory of processes; pages that several share count once (PSS)."""
    num_bytes = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            info = process.memory_full_info()
            num_bytes += int(getattr(info, "pss", info.rss))
    return num_bytes


def workers_rss() -> int:
    """Returns the resident memory of all processes below this one, in bytes."""
    return resident_bytes(psutil.Process().children(recursive=True))


def make_memory_resident(folder: Path, num_bytes: int) -> None:
    """Writes and deletes files of so many bytes, so that the page cache of a side's files has real memory behind it.

    A hypervisor may take a guest's free pages back within seconds; the first touch of such a page then costs some ten
    times what writing to it does (measured in a Firecracker VM: 1.5 to 2.4 CPU s a GB, at once repeated 0.25), at
    random to whichever side comes first. On other machines this changes nothing.
    """
    piece = memoryview(os.urandom(8 << 20))
    with tempfile.TemporaryDirectory(dir=folder, prefix="resident-") as made:
        for number, start in enumerate(range(0, num_bytes, len(piece))):
            (Path(made) / str(number)).write_bytes(piece[: num_bytes - start])


def read_into_page_cache(folder: Path) -> int:
    """Reads all files below a folder, so that whoever reads them next does not wait for the drive."""
    return sum(len(path.read_bytes()) for path in folder.rglob("*") if path.is_file())


class Bystanders:
    """Measures how much of the machine other programs take from now on; more than a little is noise."""

    def __init__(self) -> None:
        self.machine = describe_machine()
        self._began = perf_counter()
        self._others_s = self._so_far_s()

    def _so_far_s(self) -> float:
        return _busy_s() - cpu_of_tree_s() - cpu_of_fresh_processes_s()

    def share(self) -> float:
        """Returns the others' share of all cores, 0 … 1."""
        others_s = self._so_far_s() - self._others_s
        return max(0.0, round(others_s / ((perf_counter() - self._began) * num_cores()), 3))

    def facts(self) -> dict[str, float]:
        """Returns how long it took, and the others' share, as they are written to the JSON file."""
        return {"took_s": round(perf_counter() - self._began, 1), "other_programs_share": self.share()}


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice as well
    return float(sum(times) - idle - guest)
