"""Divides the samples of a snapshot into output files. Pure functions.

The division depends on the manifest and the target size alone. So an export that is started again divides the samples
in the same way, and a file that exists under its final name is finished.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ExportFile", "ExportJob", "plan_files"]


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A run of samples that becomes one file.

    Attributes:
        number: Number of the file, from 0.
        first_sample: Number of the first sample in the dataset.
        num_samples: Number of samples.
        num_bytes: Size of the samples in the dataset, estimated if a shard is divided.
    """

    number: int
    first_sample: int
    num_samples: int
    num_bytes: int

    @property
    def end_sample(self) -> int:
        """One past the number of the last sample."""
        return self.first_sample + self.num_samples


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Files that are written together: one file from several shards, or several files from one large shard.

    Attributes:
        first_shard: Number of the first shard.
        num_shards: Number of consecutive shards.
        files: Files in the order of the samples.
    """

    first_shard: int
    num_shards: int
    files: tuple[ExportFile, ...]


def plan_files(
    num_samples: Sequence[int], sizes: Sequence[int], *, target_bytes: int, min_files: int
) -> list[ExportJob]:
    """Divides consecutive samples into files of about a target size.

    Small shards are joined while their total size does not exceed the target. A larger shard is divided into equal
    numbers of samples.

    Args:
        num_samples: Number of samples of each shard.
        sizes: Size of each shard in bytes.
        target_bytes: Target size of a file.
        min_files: Number of empty files (0 or 1) to plan if there are no samples.
    """
    jobs: list[ExportJob] = []
    sample = number = shard = 0
    while shard < len(sizes):
        end, total_bytes, count = shard + 1, sizes[shard], num_samples[shard]
        while end < len(sizes) and total_bytes + sizes[end] <= target_bytes:
            total_bytes += sizes[end]
            count += num_samples[end]
            end += 1
        if count:
            pieces = min(count, -(-total_bytes // target_bytes))
            bounds = [count * piece // pieces for piece in range(pieces + 1)]
            files = tuple(
                ExportFile(number + piece, sample + low, high - low, total_bytes * (high - low) // count)
                for piece, (low, high) in enumerate(itertools.pairwise(bounds))
            )
            jobs.append(ExportJob(shard, end - shard, files))
            number += pieces
        sample += count
        shard = end
    if not jobs and min_files:
        jobs.append(ExportJob(0, 0, (ExportFile(0, 0, 0, 0),)))
    return jobs
