from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader import ShardDataset
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.pipeline.sample_processing import ProcessingOptions
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.secret import hide, is_lost
from concurrent_loader.workers.job import Job, PickledJob, _Rehearsal, check_job

sys.path.append(str(Path(__file__).parent))
import worker_recipes as recipes


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[ShardDataset]:
    with ShardWriter(str(tmp_path), columns={"label": "int64"}) as writer:
        writer.write({"label": 1})
    with ShardDataset(str(tmp_path)) as dataset:
        yield dataset


PLAN = PlanOptions(global_batch_size=1, seed=0, groups=1, shuffle=False, shuffle_window="1MiB", last_batch="short")


def job_of(dataset: ShardDataset, **changes: Any) -> Job:
    given: dict[str, Any] = {
        "dataset": dataset, "plan": PLAN, "processing": ProcessingOptions(), "worker_init_fn": None, "rank": 0,
        "world_size": 1, "num_workers": 2, "num_threads": 1, "prefetch_batches": 4, "prefetch_bytes": 100,
    }  # fmt: skip
    return Job(**{**given, **changes})


@pytest.mark.parametrize(
    ("num_workers", "prefetch_batches", "ahead"),
    [(1, 5, [5]), (2, 4, [2, 2]), (3, 7, [3, 2, 2]), (4, 2, [1, 1, 1, 1]), (2, 1, [1, 1])],
)
def test_the_bound_on_batches_is_dealt_out(
    dataset: ShardDataset, num_workers: int, prefetch_batches: int, ahead: list[int]
) -> None:
    job = job_of(dataset, num_workers=num_workers, prefetch_batches=prefetch_batches)
    assert [job.batches_ahead(worker) for worker in range(num_workers)] == ahead


def test_secrets_go_along_when_a_process_is_started_and_at_no_other_time(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path), columns={"label": "int64"}) as writer:
        writer.write({"label": 1})
    secret = "not-for-every-pickle"
    with ShardDataset(str(tmp_path)) as dataset:
        kept = dataset._with(_storage_options=hide({"password": secret}))
        pickled_job = PickledJob(job_of(kept))
        assert secret.encode() not in pickle.dumps(pickled_job)
        set_spawning_popen(_Rehearsal())  # type: ignore[arg-type]
        try:
            assert secret.encode() in pickle.dumps(pickled_job)
        finally:
            set_spawning_popen(None)
        opened = pickle.loads(pickle.dumps(pickled_job)).open()
        assert not is_lost(opened.dataset._storage_options["password"])  # this process has seen it
        assert opened.num_workers == 2


def test_what_only_a_started_process_may_get_is_no_reason_to_refuse(dataset: ShardDataset) -> None:
    lock = multiprocessing.get_context("spawn").Lock()
    check_job(job_of(dataset, processing=ProcessingOptions(transform=recipes.Holding(lock))))
    with Path(__file__).open() as file, pytest.raises(ConfigurationError, match="transform cannot be sent"):
        check_job(job_of(dataset, processing=ProcessingOptions(transform=recipes.Holding(file))))
