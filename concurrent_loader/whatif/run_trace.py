"""The recording of a run: what was read in which step, and what it cost. Bounded, a few hundred kilobytes at most."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated

import msgspec

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["MAX_STEPS", "MAX_USES", "RunTrace"]

MAX_STEPS = 4096
MAX_USES = 1 << 18  # of units by steps
_VERSION = 1

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class RunTrace(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What `concurrent_loader.NativeDataLoader.record` has seen.

    Attributes:
        version: Version of this format.
        step_units: Units (shards or objects) that each step reads, numbered in the order of their first use.
        step_samples: Number of samples of each step.
        unit_bytes: Size of each unit in bytes.
        by_object: Whether a unit is a single object, so that the number of units requested at once is bounded.
        in_flight: Number of requests that were asked for; None for ``"auto"``.
        num_threads: Number of decode threads.
        prefetch_batches: Number of batches made ahead.
        prefetch_bytes: Bytes of units fetched ahead.
        cores: Number of cores that the process could use.
        num_batches: Number of batches delivered while recording; those of ``step_units`` may be fewer.
        num_samples: Number of samples in them.
        wall_s: Seconds recorded.
        wait_s: Part of them in which the consumer waited.
        consumer_s: Part of them that the consumer spent between batches.
        consumer_cpu_s: Processor seconds of the consumer's thread.
        thread_s: Seconds that decode threads worked.
        thread_cpu_s: Processor seconds of these threads.
        process_cpu_s: Processor seconds of the whole process, and of its workers.
        num_gets: Number of requests.
        num_bytes: Bytes that they received.
        request_s: Seconds that all requests took, in sum.
        first_byte_s: Median, 95th and 99th percentile of the seconds to the first byte.
        sample_bytes: Mean size of a sample in bytes, if samples are only read; 0 if they are decoded or transformed.
    """

    version: int = _VERSION
    step_units: Annotated[list[list[Count]], msgspec.Meta(min_length=1, max_length=MAX_STEPS)]
    step_samples: list[Count]
    unit_bytes: list[Count]
    by_object: bool
    in_flight: Positive | None
    num_threads: Positive
    prefetch_batches: Positive
    prefetch_bytes: Count
    cores: Positive
    num_batches: Positive
    num_samples: Positive
    wall_s: Seconds
    wait_s: Seconds
    consumer_s: Seconds
    consumer_cpu_s: Seconds
    thread_s: Seconds
    thread_cpu_s: Seconds
    process_cpu_s: Seconds
    num_gets: Count
    num_bytes: Count
    request_s: Seconds
    first_byte_s: tuple[Seconds, Seconds, Seconds]
    sample_bytes: Count = 0

    def save(self, path: Path) -> None:
        """Writes the recording."""
        path.write_bytes(gzip.compress(msgspec.json.encode(self), mtime=0))

    @classmethod
    def load(cls, path: Path) -> RunTrace:
        """Reads a recording.

        Raises:
            ConfigurationError: The file is not a recording, or one of another version.
            OSError: The file cannot be read.
        """
        try:
            with gzip.open(path) as file:
                found = msgspec.json.decode(file.read(1 << 26), type=cls)
        except (msgspec.DecodeError, gzip.BadGzipFile, EOFError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"not a recording of loader.record: {error}", got=str(path)) from error
        if found.version != _VERSION or len(found.step_samples) != len(found.step_units):
            raise ConfigurationError("a recording of another version", expected=_VERSION, got=found.version)
        if any(unit >= len(found.unit_bytes) for units in found.step_units for unit in units):
            raise ConfigurationError("a recording with a unit that has no size", got=str(path))
        return found
