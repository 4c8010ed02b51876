"""The user's functions, called on samples and batches: what fails in them is a `TransformError` that says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from concurrent_loader.errors import LoaderError, TransformError
from concurrent_loader.slices import Slice
from storage.errors import ConfigurationError

__all__ = ["transform_batch", "transform_sample"]


def transform_sample(
    transform: Callable[[dict[str, Any]], Any], sample: dict[str, Any], part: Slice, place: int
) -> Any:
    """Returns what a transform makes of the sample at a place of a slice.

    Raises:
        TransformError: It failed, ``from`` the cause; errors of the loader come as they are.
    """
    try:
        return transform(sample)
    except LoaderError:
        raise
    except (Exception, SystemExit) as error:  # a thread's sys.exit() ends nothing
        raise TransformError(f"the transform failed: {type(error).__name__}: {error}", **part.facts(place)) from error


def transform_batch(transform: Callable[[Any], Any] | None, batch: Any) -> Any:
    """Returns what a batch transform makes of a batch.

    Raises:
        TransformError: It failed, ``from`` the cause; errors of the loader and of its configuration come as they are.
    """
    if transform is None:
        return batch
    try:
        return transform(batch)
    except (LoaderError, ConfigurationError):
        raise
    except Exception as error:
        raise TransformError(f"the batch transform failed: {type(error).__name__}: {error}") from error
