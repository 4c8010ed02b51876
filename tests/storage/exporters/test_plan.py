from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.exporters.plan import ExportFile, ExportJob, plan_files

SHARDS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), max_size=40)


@given(SHARDS, st.integers(1, 2000))
def test_every_sample_is_in_one_file_and_files_are_near_the_target(shards, target):
    counts, sizes = [count for count, _ in shards], [size for _, size in shards]
    jobs = plan_files(counts, sizes, target_bytes=target, min_files=0)
    files = [file for job in jobs for file in job.files]
    assert [file.number for file in files] == list(range(len(files)))
    at = 0
    for file in files:
        assert file.first_sample == at
        assert file.num_samples > 0
        at = file.end_sample
    assert at == sum(counts)
    for job in jobs:
        size = sum(sizes[job.first_shard : job.first_shard + job.num_shards])
        assert job.num_shards == 1 or (size <= target and len(job.files) == 1)
        assert sum(file.num_samples for file in job.files) == sum(
            counts[job.first_shard : job.first_shard + job.num_shards]
        )


def test_small_shards_are_joined_and_large_ones_divided():
    assert plan_files([10, 10, 10, 9], [40, 40, 40, 300], target_bytes=100, min_files=0) == [
        ExportJob(0, 2, (ExportFile(0, 0, 20, 80),)),
        ExportJob(2, 1, (ExportFile(1, 20, 10, 40),)),
        ExportJob(3, 1, (ExportFile(2, 30, 3, 100), ExportFile(3, 33, 3, 100), ExportFile(4, 36, 3, 100))),
    ]


def test_an_empty_dataset_has_as_many_files_as_the_format_needs():
    assert plan_files([], [], target_bytes=100, min_files=0) == []
    assert plan_files([], [], target_bytes=100, min_files=1) == [ExportJob(0, 0, (ExportFile(0, 0, 0, 0),))]
