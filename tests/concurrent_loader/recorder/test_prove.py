from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from concurrent_loader import (
    Balanced,
    ByLength,
    ConcurrentDataLoader,
    LoaderError,
    LoaderStateError,
    Mixture,
    ObjectDataset,
    Packed,
    ShardDataset,
    Weighted,
)
from concurrent_loader.cli.app import app
from concurrent_loader.recorder import Proof, flight_recorder, prove
from concurrent_loader.recorder.flight_recorder import log_name
from concurrent_loader.recorder.log_format import Repair, Session
from concurrent_loader.recorder.read_log import _check_repair
from concurrent_loader.storage import ConfigurationError, NotFound, ShardWriter
from concurrent_loader.storage.shards.editing.delete import delete

NUM_SAMPLES, GLOBAL = 53, 8


@pytest.fixture(scope="module")
def small() -> Iterator[ShardDataset]:
    url = f"memory://{uuid4().hex}"
    with ShardWriter(
        url, columns={"label": "int64", "tokens": "int32[...]", "data": "bytes"}, shard_size="4KiB"
    ) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"label": number, "tokens": np.arange(number % 7 + 1, dtype=np.int32), "data": bytes(400)})
    with ShardDataset(url) as dataset:
        yield dataset


class Run:
    """A run of several ranks in one process, which take turns step by step."""

    def __init__(self, dataset: Any, folder: Path, **options: Any) -> None:
        self._dataset, self.folder = dataset, folder
        self._options = {"shuffle": True, "shuffle_window": 20, "groups": 4, "num_threads": 1, **options}

    def start(self, world_size: int, state: dict[str, Any] | None = None) -> list[Any]:
        loaders = [
            ConcurrentDataLoader(
                self._dataset, GLOBAL // world_size, rank=rank, world_size=world_size, recorder=self.folder,
                **self._options,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        return loaders

    def steps(self, loaders: list[Any], num: int) -> dict[str, Any]:
        """Delivers some steps on all ranks; returns rank 0's state."""
        for iterators in [[iter(loader) for loader in loaders]]:
            for _ in range(num):
                for each in iterators:
                    next(each)
            state = loaders[0].state_dict()
            for each in iterators:
                each.close()
        return state

    def prove(self, **options: Any) -> Proof:
        return prove(self.folder, **options)


def epochs(proof: Proof) -> list[tuple[int, bool, int, int]]:
    return [(each.epoch, each.finished, each.num_delivered, each.num_left_out) for each in proof.epochs]


def test_an_epoch_is_proven_across_resumes_and_changes_of_world_size(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path / "run")
    checkpoint = run.steps(run.start(2), 3)
    assert len(checkpoint["recorder_head"]) == 32
    run.steps(run.start(2, checkpoint), 2)  # killed after two steps that are repeated
    for loader in (final := run.start(4, checkpoint)):
        for _ in range(2):
            list(loader)
    proof = run.prove(heads=[checkpoint["recorder_head"], final[0].state_dict()["recorder_head"]])
    assert (proof.problems, epochs(proof)) == ([], [(0, True, 53, 0), (1, True, 53, 0)])
    assert (proof.num_superseded, proof.world_sizes) == (4, [2, 4])
    assert [each.most_often for each in proof.epochs] == [1, 1]
    seen = [sample for step in range(7) for each in proof.step(0, step) for sample in each.samples]
    assert sorted(seen) == list(range(53))
    assert [each.rank for each in proof.step(*proof.locate(2))] == [0, 1]
    assert [each.rank for each in proof.step(*proof.locate(9))] == [0, 1, 2, 3]
    assert json.loads(json.dumps(proof.to_dict()))["proven"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"drop_last": True}, (48, 48, 5)),
        ({"last_batch": "pad"}, (53, 53, 0)),
        ({"shuffle": False}, (53, 53, 0)),
        ({"sampling": Weighted([1.0] * 50 + [0.0] * 3)}, (53, None, 0)),
        ({"sampling": Balanced("label")}, (53, None, 0)),
        ({"batching": ByLength("tokens")}, (53, 53, 0)),
        ({"batching": Packed("tokens", length=16)}, (None, 53, 0)),
        ({"batching": torch.utils.data.SequentialSampler(range(20)), "shuffle": False}, (20, 20, 33)),
    ],
    ids=["drop", "pad", "in order", "weighted", "balanced", "by length", "packed", "sampler"],
)
def test_every_kind_of_order_is_proven(
    small: ShardDataset, tmp_path: Path, options: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    run = Run(small, tmp_path, **options)
    state = run.steps(run.start(1), 1)
    list(run.start(1, state)[0])
    proof = run.prove()
    (found,) = proof.epochs
    assert proof.problems == []
    assert found.finished
    for got, wanted in zip((found.num_delivered, found.num_distinct, found.num_left_out), expected, strict=True):
        assert wanted is None or got == wanted


def test_views_mixtures_and_objects_are_proven(small: ShardDataset, tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    for number in range(9):
        (tmp_path / "objects" / f"{number}.bin").write_bytes(bytes([number]))
    view = small.filter(lambda sample: sample["label"] % 2 == 0, columns=["label"])
    with ObjectDataset(tmp_path / "objects", column_type="bytes") as objects:
        for name, dataset, ids in (
            ("view", view, set(range(0, 53, 2))),
            ("objects", objects, set(range(9))),
            ("mixture", Mixture([view, small], [1, 1], per="sample", stop="longest"), None),
        ):
            run = Run(dataset, tmp_path / name)
            batches = [batch for loader in run.start(2) for batch in loader]
            proof = run.prove()
            assert proof.problems == []
            assert proof.epochs[0].finished
            steps = [each for step in range(proof.epochs[0].num_steps) for each in proof.step(0, step)]
            got = [each.samples for each in sorted(steps, key=lambda each: (each.rank, each.step))]
            assert got == [batch.sample_ids.tolist() for batch in batches]
            if ids is not None:
                assert {sample for each in got for sample in each} == ids
            else:
                assert [each.sources for each in sorted(steps, key=lambda each: (each.rank, each.step))] == [
                    batch.sources.tolist() for batch in batches
                ]
    with pytest.raises(ConfigurationError, match="no such step"):
        proof.step(7, 0)
    with pytest.raises(ConfigurationError, match="no such step"):
        proof.locate(10**6)


def test_a_mixture_of_packed_rows_is_proven_over_epochs_and_a_resume(small: ShardDataset, tmp_path: Path) -> None:
    view = small.filter(lambda sample: sample["label"] % 2 == 0, columns=["label"])
    mixture = Mixture([view, small], [3, 1], per="batch", stop=9)  # the view begins again within an epoch
    run = Run(mixture, tmp_path, batching=Packed("tokens", length=8, packing="split"), last_batch="drop")
    batches = [batch for loader in run.start(2) for batch in loader]
    loaders = run.start(1)
    loaders[0].set_epoch(1)
    state = run.steps(loaders, 4)
    list(run.start(1, state)[0])
    proof = run.prove()
    assert proof.problems == []
    assert [(each.num_steps, each.finished) for each in proof.epochs] == [(9, True), (9, True)]
    steps = [each for step in range(9) for each in proof.step(0, step)]
    steps.sort(key=lambda each: (each.rank, each.step))
    assert [each.samples for each in steps] == [batch.sample_ids.tolist() for batch in batches]
    assert [each.sources for each in steps] == [batch.sources.tolist() for batch in batches]


def changed(lines: list[str], at: int, new: str) -> list[str]:
    return [*lines[:at], new, *lines[at + 1 :]]


MUTATIONS: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "a count": (lambda log: changed(log, 4, log[4].replace(" 4 ", " 3 ")), "line 5"),
    "a hash": (lambda log: changed(log, 4, log[4][:-1] + "0123456789abcdef"[int(log[4][-1], 16) - 1]), "line 5"),
    "a line removed": (lambda log: [*log[:4], *log[5:]], "line 5"),
    "two lines swapped": (lambda log: [*log[:4], log[5], log[4], *log[6:]], "line 5"),
    "a line doubled": (lambda log: [*log[:4], log[4], *log[4:]], "line 6"),
    "the session removed": (lambda log: log[1:], "line 1"),
    "the time": (lambda log: changed(log, 0, log[0].replace('"time":1', '"time":2')), "line 1"),
    "the first epoch removed": (lambda log: [log[0], *log[9:]], "line 2"),
    "another spelling": (lambda log: changed(log, 4, "0" + log[4]), "line 5"),
    "no text": (lambda log: changed(log, 4, "\xff"), "line 5"),
    "the end of an epoch": (lambda log: [*log[:4], "E 0 " + "0" * 32], "line 5"),
    "an empty log": (lambda log: [], "empty"),
}


@pytest.fixture(scope="module")
def two_ranks(small: ShardDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two epochs on two ranks, and the head of rank 0's state."""
    run = Run(small, tmp_path_factory.mktemp("runs") / "two")
    for loader in (loaders := run.start(2)):
        for _ in range(2):
            list(loader)
    return run.folder, loaders[0].state_dict()["recorder_head"]


def copy_of(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_log_proves_nothing(two_ranks: tuple[Path, str], tmp_path: Path, name: str) -> None:
    folder = copy_of(two_ranks[0], tmp_path)
    assert prove(folder).proven
    mutate, place = MUTATIONS[name]
    log = folder / "rank-00001.log"
    lines = log.read_text().splitlines()
    log.write_bytes("".join(line + "\n" for line in mutate(lines)).encode("latin-1"))
    proof = prove(folder)
    first = proof.problems[0]
    assert first.file == "rank-00001.log"
    assert place in str(first)


def test_missing_and_foreign_files_are_found(two_ranks: tuple[Path, str], tmp_path: Path) -> None:
    folder, head = two_ranks
    copy = copy_of(folder, tmp_path)
    (copy / "rank-00001.log").rename(copy / "rank-00002.log")
    assert "name of another rank" in str(prove(copy).problems[0])
    (copy / "rank-00002.log").unlink()
    assert any("rank" in str(problem) and "lack" in str(problem) for problem in prove(copy).problems)
    copy = copy_of(folder, tmp_path)
    log = copy / "rank-00000.log"
    log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines()[:-1]))
    assert [str(problem) for problem in prove(copy).problems] == []  # a run that was stopped looks the same
    assert "lines were removed" in str(prove(copy, heads=[head]).problems[0])
    lines = log.read_text().splitlines()
    log.write_text("".join(f"{line}\n" for line in lines[:8]))
    assert any("lack it" in str(problem) for problem in prove(copy).problems)  # the other rank went on
    order = next(copy.glob("order-*.json"))
    order.write_text(order.read_text().replace('"seed":0', '"seed":1'))
    assert "was changed" in str(prove(copy).problems[0])
    order.unlink()
    assert "missing" in str(prove(copy).problems[0])
    with pytest.raises(NotFound, match="no logs"):
        prove(tmp_path / "nothing")


def test_a_torn_line_is_tolerated_and_reported(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path)
    state = run.steps(run.start(1), 3)
    log = tmp_path / "rank-00000.log"
    whole = log.read_bytes()
    log.write_bytes(whole + b"3 8 0123")
    proof = run.prove()
    assert proof.proven
    assert "torn" in proof.notes[0]
    list(run.start(1, state)[0])
    proof = run.prove()
    assert (proof.problems, proof.epochs[0].finished) == ([], True)
    assert "8 bytes of a torn line were cut off" in proof.notes[0]
    assert log.read_bytes().startswith(whole)


def test_a_repetition_without_a_state_is_found(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path)
    (loader,) = run.start(1)
    list(loader)
    loader.set_epoch(0)
    list(loader)
    proof = run.prove()
    assert "delivered steps 0 to 6 twice" in str(proof.problems[0])
    assert not any(each.finished and proof.proven for each in proof.epochs)


def test_a_gap_between_state_and_log_is_found(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path / "run")
    state = run.steps(run.start(1), 4)
    log = run.folder / "rank-00000.log"
    log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines()[:4]))  # power failure without a flush
    list(run.start(1, state)[0])
    first, second = map(str, run.prove().problems)
    assert "no log has" in first
    assert "steps 2 to 3 were not recorded" in second
    state["recorder_head"] = "0" * 32
    other = Run(small, tmp_path / "other")
    list(other.start(1, state)[0])
    assert "no log has" in str(other.prove().problems[0])


def test_notes_name_restarts_and_states_without_a_record(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path / "again")
    run.steps(run.start(1), 3)
    run.steps(run.start(1), 2)
    proof = run.prove()
    assert proof.proven
    assert "without a restored state" in proof.notes[0]
    assert proof.epochs[0].stop_step == 2
    old = {**run.steps(run.start(1), 4)}
    del old["recorder_head"]
    late = Run(small, tmp_path / "late")
    list(late.start(1, old)[0])
    proof = late.prove()
    assert proof.proven
    assert not proof.epochs[0].finished
    assert [note.partition(": ")[2] or note for note in proof.notes] == [
        "the restored state was saved without a flight recorder",
        "epoch 0 was recorded from step 4 on",
    ]


def test_iterations_that_take_turns_are_told_apart(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path)
    (loader,) = run.start(1)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    list(first)
    list(second)
    proof = run.prove(heads=[loader.state_dict()["recorder_head"]])
    assert (proof.problems, epochs(proof)) == ([], [(0, True, 53, 0), (1, True, 53, 0)])


def test_a_state_of_a_loader_without_a_recorder_has_no_head(small: ShardDataset, tmp_path: Path) -> None:
    plain = ConcurrentDataLoader(small, 8)
    assert "recorder_head" not in plain.state_dict()
    run = Run(small, tmp_path, groups=1, shuffle=False, shuffle_window="128MiB")
    state = run.steps(run.start(1), 1)
    plain.load_state_dict(state)
    assert len(list(plain)) == 6
    with pytest.raises(LoaderStateError, match="hex"):
        plain.load_state_dict({**state, "recorder_head": 7})


def test_one_loader_writes_a_log_at_a_time(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path)
    first, second = run.start(1) + run.start(1)
    batches = iter(first)
    next(batches)
    next(iter(second))
    with pytest.raises(ConfigurationError, match="another loader records"):
        next(batches)
    assert run.prove().proven
    (third,) = run.start(1)
    (tmp_path / "rank-00000.log").write_text("shopping list\n")
    with pytest.raises(ConfigurationError, match="not the log"):
        next(iter(third))


def test_lines_of_fast_steps_are_written_together(
    small: ShardDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "HOLD_S", 3600.0)
    run = Run(small, tmp_path)
    (loader,) = run.start(1)
    batches = iter(loader)
    next(batches), next(batches)
    path = run.folder / log_name(0)
    assert len(path.read_text().splitlines()) == 2  # of the session and the iteration
    head = loader.state_dict()["recorder_head"]
    assert path.read_text().splitlines()[-1].endswith(head)
    assert len(path.read_text().splitlines()) == 4
    next(batches)
    assert run.prove().num_steps == 3  # a proof in the same process has all lines
    next(batches)
    del batches, loader
    gc.collect()
    assert len(path.read_text().splitlines()) == 6
    assert run.prove().problems == []


def test_a_full_drive_is_an_error_of_a_later_step_and_loses_no_line(
    small: ShardDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "HOLD_S", 3600.0)
    run = Run(small, tmp_path)
    (loader,) = run.start(1)
    batches = iter(loader)
    next(batches), next(batches)
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: 0)
        with pytest.raises(LoaderError, match="cannot write"):
            loader.state_dict()
    head = loader.state_dict()["recorder_head"]
    for _ in batches:
        pass
    proof = run.prove(heads=[head])
    assert (proof.problems, proof.num_steps) == ([], 7)


def test_a_full_drive_is_an_error_in_place_of_the_batch(
    small: ShardDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "HOLD_S", 0.0)
    run = Run(small, tmp_path)
    (loader,) = run.start(1)
    batches = iter(loader)
    next(batches)
    write = os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: write(fd, data[:3]))
        with pytest.raises(LoaderError, match="cannot write"):
            next(batches)
    assert loader.state_dict()["step"] == 1
    # With free space again, the run goes on, and its log is whole.
    for _ in loader:
        pass
    assert not run.prove().problems


def test_a_forked_child_does_not_keep_the_lock(small: ShardDataset, tmp_path: Path) -> None:
    path = tmp_path / log_name(0)
    log = flight_recorder._Log(path, Session(0, 1, 0.0))
    end, other = os.pipe()
    child = os.fork()
    if not child:
        os.close(other)
        os.read(end, 1)  # until the parent closes its end
        os._exit(0)
    os.close(end)
    try:
        log.close()
        flight_recorder._Log(path, Session(0, 1, 0.0)).close()
    finally:
        os.close(other)
        os.waitpid(child, 0)


def test_batches_without_sample_numbers_are_counted_as_unobserved(small: ShardDataset, tmp_path: Path) -> None:
    run = Run(small, tmp_path, collate_fn=len)
    list(run.start(1)[0])
    proof = run.prove()
    assert (proof.problems, proof.num_unobserved, proof.epochs[0].finished) == ([], 7, True)


def test_the_command_shows_steps_failures_and_deletions(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    url, run = str(tmp_path / "photos"), str(tmp_path / "run")
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(40):
            image = make_jpeg(number)
            writer.write({"image": image[:200] if number == 11 else image, "label": number})
    with ShardDataset(url) as dataset:
        for _ in ConcurrentDataLoader(
            dataset, 16, shuffle=True, decode={"image": "rgb"}, on_error="skip", max_errors=2, recorder=run
        ):
            pass
    delete(url, ids=[11, 12])
    command = ["prove", run, "--step", "2", "--deleted", "--json"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.output)
    assert [each["samples"] for each in result["failed"]] == [[11]]
    assert sorted(each["sample"] for each in result["deleted"]) == [11, 12]
    (step,) = result["step"]
    assert len(step["samples"]) == 8
    assert all(len(each["digests"]["image"]) == 16 and each["key"] for each in step["samples"])
    text = CliRunner().invoke(app, ["prove", run, "--step", "0:2", "--deleted", "--head", "0" * 32])
    assert text.exit_code == 1
    for part in ("NOT proven", "epoch 0: 3 steps, 40 samples, each exactly once", "undecodable", "2 samples deleted"):
        assert part in text.output
    assert CliRunner().invoke(app, ["prove", run, "--step", "x"]).exit_code == 2
    (tmp_path / "photos").rename(tmp_path / "moved")
    moved = CliRunner().invoke(app, ["prove", run, "--step", "0"])
    assert "keys and digests are not known" in moved.output


def test_the_same_number_of_two_datasets_in_one_batch(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    """Numbers are per dataset. Only that of the first one fails."""
    run, datasets = str(tmp_path / "run"), []
    for name in "ab":
        url = str(tmp_path / name)
        with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}) as writer:
            for number in range(8):
                image = make_jpeg(number)
                writer.write({"image": image[:200] if (name, number) == ("a", 5) else image, "label": number})
        datasets.append(ShardDataset(url))
    mixture = Mixture(datasets, [1, 1], per="sample")
    for on_error in ("skip", "replace"):
        loader = ConcurrentDataLoader(
            mixture, 16, decode={"image": "rgb"}, on_error=on_error, recorder=f"{run}-{on_error}"
        )
        list(loader)
        proof = prove(f"{run}-{on_error}")
        assert proof.problems == []
        assert [each.samples for each in proof.failed] == [[5]]
    for dataset in datasets:
        dataset.close()


@pytest.mark.parametrize(
    ("repair", "is_allowed"),
    [
        (Repair([5], [5, 7], 0, [1, 0]), True),
        (Repair([5], [5, 7], 0, [0, 0]), True),
        (Repair([5], [7, 7], 0, [0, 0]), False),
        (Repair([5], [5, 7], 0, [1, 1]), False),
        (Repair([5], [5, 7], 0, []), False),
        (Repair([7], [5, 7], 0, [1, 0]), False),
        (Repair([], [5, 5, 7], 3, [0, 1, 0]), False),
        (Repair([5, 7], [5, 5, 7], 3, [0, 1, 0]), True),
    ],
)
def test_a_repaired_step_is_that_of_its_order(repair: Repair, is_allowed: bool) -> None:
    planned = [(0, 5), (1, 5), (0, 7)]
    with nullcontext() if is_allowed else pytest.raises(ValueError, match="samples"):
        _check_repair(planned, 0, repair, is_mixture=True)
