"""Which tasks of a Ray cluster are cancelled, against a stand-in for Ray: a real cluster takes seconds to start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from concurrent_loader.storage.importers import ray_parts
from concurrent_loader.storage.importers.part_processes import PartTarget


class _Ray:
    """Runs a task when its result is asked for."""

    exceptions = SimpleNamespace(RayTaskError=RuntimeError)

    def __init__(self) -> None:
        self.finished: list[Any] = []
        self.cancelled: list[Any] = []

    def is_initialized(self) -> bool:
        return True

    def remote(self, function: Any) -> Any:
        task = SimpleNamespace(remote=lambda part, where: part)
        return SimpleNamespace(options=lambda **options: task)

    def put(self, value: Any) -> Any:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def get(self, reference: Any) -> Any:
        self.finished.append(reference)
        return reference

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert (num_returns, timeout) == (len(references), 0)
        return (
            [reference for reference in references if reference in self.finished],
            [reference for reference in references if reference not in self.finished],
        )

    def cancel(self, reference: Any, *, force: bool) -> None:
        assert force
        self.cancelled.append(reference)


@pytest.mark.parametrize(
    ("num_read", "num_finished", "cancelled"), [(6, 6, []), (2, 2, [2, 3, 4, 5]), (2, 4, [4, 5]), (0, 0, [])]
)
def test_only_tasks_that_run_are_cancelled(
    monkeypatch: pytest.MonkeyPatch, num_read: int, num_finished: int, cancelled: list[int]
) -> None:
    ray = _Ray()
    monkeypatch.setattr(ray_parts, "import_library", lambda name, extra: ray)
    parts: Any = range(6)
    written = ray_parts.write_on_ray(parts, PartTarget("memory://x"), num_workers=6, address=None)
    assert [next(written) for _ in range(num_read)] == list(range(num_read))
    ray.finished = list(range(num_finished))
    written.close()
    assert ray.cancelled == cancelled
