from __future__ import annotations

from concurrent_loader.errors import LoaderError, WorkerTraceback
from concurrent_loader.pipeline.batch_iterator import END, Failure
from concurrent_loader.stats.wait_attribution import BatchStatus
from concurrent_loader.workers.messages import Outcome


def test_outcomes_say_what_they_are() -> None:
    batch, error = Outcome(item=("anything",)), Outcome(error=LoaderError("no"), cause="where it was")
    assert (batch.unwrapped(), batch.last) == ("anything", False)
    assert (Outcome().unwrapped(), Outcome().last) == (END, True)
    assert not Outcome(batch_status=BatchStatus()).last
    failure = error.unwrapped()
    assert isinstance(failure, Failure)
    assert error.last
    assert isinstance(failure.error.__cause__, WorkerTraceback)
    assert str(failure.error.__cause__) == "where it was"
