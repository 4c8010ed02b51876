"""The examples of docs/examples: each is run, and does what its first line says."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful import Stateful

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
BATCH, NUM_SAMPLES = 64, 64 * 5 + 7
STEPS = 2 * (NUM_SAMPLES // BATCH)  # of both epochs


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("points"))
    numbers = np.random.default_rng(0)
    with ShardWriter(folder, columns={"x": "float32[8]", "label": "int64"}, shard_size="4KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"x": numbers.normal(size=8).astype(np.float32) + number % 3, "label": number % 3})
    return folder


@pytest.fixture(scope="session")
def reference(points: str) -> list[list[int]]:
    """The samples of each step of both epochs, in one process without any framework."""
    with ShardDataset(points) as dataset:
        loader = ConcurrentDataLoader(dataset, BATCH, shuffle=True, seed=0, drop_last=True)
        return [batch.sample_ids.tolist() for _ in range(2) for batch in loader]


def run_ranks(example: str, runs: list[dict[str, Any]], tmp_path: Path) -> list[list[dict[str, Any]]]:
    """Runs an example in several processes, several times; returns what each rank of each run saw."""
    for number, run in enumerate(runs):
        run["out"] = str(tmp_path / f"run{number}")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ranks_program.py"))],
        input=json.dumps({"example": str(EXAMPLES / example), "runs": runs}),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return [
        [json.loads(Path(run["out"], f"{rank}.json").read_text()) for rank in range(run["world_size"])] for run in runs
    ]


def global_batches(ranks: list[dict[str, Any]]) -> list[list[int]]:
    return [
        [sample for part in parts for sample in part]
        for parts in zip(*(rank["samples"] for rank in ranks), strict=True)
    ]


def gradients(ranks: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """(steps, parameters); every rank has the same."""
    for rank in ranks[1:]:
        assert rank["gradients"] == ranks[0]["gradients"]
    return np.array(ranks[0]["gradients"])


def gradients_of_one_process(points: str, batches: list[list[int]]) -> np.ndarray[Any, Any]:
    """What the examples' model should see, by a loop as plain as can be."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with ShardDataset(points) as dataset:
        x, label = (torch.from_numpy(np.asarray(dataset.column(name))) for name in ("x", "label"))
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), label[batch]).backward()
        found.append(np.concatenate([parameter.grad.flatten().numpy() for parameter in model.parameters()]))
        optimizer.step()
    return np.array(found)


@pytest.mark.processes
@pytest.mark.parametrize(("example", "options"), [("ddp.py", {}), ("accelerate_loop.py", {"cpu": True})])
def test_on_several_ranks(
    points: str, reference: list[list[int]], tmp_path: Path, example: str, options: dict[str, Any]
) -> None:
    def run(world_size: int, checkpoint: str, **more: Any) -> dict[str, Any]:
        return {
            "world_size": world_size, "arguments": [points, str(tmp_path / checkpoint)], "options": {**options, **more}
        }  # fmt: skip

    # The second run is stopped in the second epoch with four processes; the third goes on with two.
    two, begun, resumed = run_ranks(example, [run(2, "whole"), run(4, "part", max_steps=7), run(2, "part")], tmp_path)
    expected = gradients_of_one_process(points, reference)
    assert len(reference) == STEPS
    assert global_batches(two) == reference
    assert np.allclose(gradients(two), expected, atol=1e-6)
    assert global_batches(begun) + global_batches(resumed) == reference
    assert np.allclose(np.concatenate([gradients(begun), gradients(resumed)]), expected, atol=1e-6)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def fitted(points: str, folder: Path, **options: Any) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
    """Trains; returns the samples of each step, and the weights at the end."""
    example = runpy.run_path(str(EXAMPLES / "lightning_trainer.py"))
    seen: list[list[int]] = []

    class Watched(example["Classifier"]):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            seen.append(batch.sample_ids.tolist())
            return super().training_step(batch, batch_idx)

    model = Watched()
    example["fit"](points, str(folder), model=model, **options)
    return seen, model.state_dict()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's use of torch
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks:UserWarning")
def test_lightning_resumes_at_every_step(points: str, reference: list[list[int]], tmp_path: Path) -> None:
    from pytorch_lightning.callbacks import ModelCheckpoint

    each_step = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    each_epoch = ModelCheckpoint(tmp_path, filename="epoch{epoch}", every_n_epochs=1, save_top_k=-1)
    seen, weights = fitted(points, tmp_path, callbacks=[each_step, each_epoch])
    assert seen == reference
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == STEPS + 2
    for checkpoint in checkpoints:
        step = torch.load(checkpoint, weights_only=False)["global_step"]
        rest, end = fitted(points, tmp_path / "more", callbacks=[], enable_checkpointing=False, resume=str(checkpoint))
        assert rest == reference[step:], checkpoint.name
        assert all(torch.equal(end[name], weights[name]) for name in weights)


@pytest.mark.processes
def test_lightning_on_two_ranks(points: str, reference: list[list[int]], tmp_path: Path) -> None:
    """Its own sampler for distributed training stays away from the loader, which has its share of the epoch already."""
    options = {"strategy": "ddp", "callbacks": [], "enable_checkpointing": False}
    then = ["validate", "test", "predict"]
    run = {"world_size": 2, "arguments": [points, str(tmp_path / "checkpoints")], "options": options, "then": then}
    (ranks,) = run_ranks("lightning_trainer.py", [run], tmp_path)
    for number in range(len(then)):
        parts = [[sample for batch in rank["then"][number] for sample in batch] for rank in ranks]
        assert sorted(parts[0] + parts[1]) == list(range(NUM_SAMPLES))
        assert min(len(part) for part in parts) >= NUM_SAMPLES // 2 - BATCH
    assert global_batches(ranks) == reference
    assert np.allclose(gradients(ranks), gradients_of_one_process(points, reference), atol=1e-6)


# -- torchdata ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_torchdata_nodes_resume_at_every_step(points: str) -> None:
    pipeline = runpy.run_path(str(EXAMPLES / "torchdata_nodes.py"))["pipeline"]
    with ShardDataset(points) as dataset:
        batches = pipeline(dataset, BATCH)
        states, whole = [], []
        for _ in range(2):
            for batch in batches:
                whole.append(batch.sample_ids.tolist())
                states.append(batches.state_dict())
        assert sorted(sample for batch in whole[: len(whole) // 2] for sample in batch) == list(range(NUM_SAMPLES))
        for number, state in enumerate(states, start=1):
            resumed = pipeline(dataset, BATCH)
            resumed.load_state_dict(json.loads(json.dumps(state)))
            rest = [batch.sample_ids.tolist() for _ in range(2) for batch in resumed]
            assert rest[: len(whole) - number] == whole[number : number + len(rest)]


def test_the_loader_has_torchdatas_protocol(points: str) -> None:
    with ShardDataset(points) as dataset:
        assert isinstance(ConcurrentDataLoader(dataset, BATCH), Stateful)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's use of torch
def test_a_data_set_inside_the_stateful_data_loader(points: str) -> None:
    with ShardDataset(points) as dataset:

        def loader() -> StatefulDataLoader[dict[str, Any]]:
            return StatefulDataLoader(
                dataset, batch_size=50, shuffle=True, generator=torch.Generator().manual_seed(0), collate_fn=labels
            )

        def labels(samples: list[dict[str, Any]]) -> list[int]:
            return [int(sample["label"]) for sample in samples]

        first = loader()
        iterator = iter(first)
        for _ in range(3):
            next(iterator)
        state, rest = first.state_dict(), list(iterator)
        resumed = loader()
        resumed.load_state_dict(state)
        assert list(resumed) == rest


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_ray_cluster")
def test_ray_train_resumes_after_a_worker_died(
    points: str, reference: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    seen = tmp_path / "seen"
    seen.mkdir()
    died = tmp_path / "died"

    def on_step(batch: Any) -> None:
        rank = torch.distributed.get_rank()
        with (seen / str(rank)).open("a") as file:
            file.write(f"{batch.epoch} {batch.step} {json.dumps(batch.sample_ids.tolist())}\n")
        if rank == 1 and (batch.epoch, batch.step) == (1, 2) and not died.exists():
            died.write_text("")
            os._exit(9)

    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "240")  # on a busy machine
    before = signal.getsignal(signal.SIGINT)  # Ray Train leaves a handler of its own
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        example = runpy.run_path(str(EXAMPLES / "ray_train.py"))
        example["train"](points, str(tmp_path / "checkpoints"), on_step=on_step)
    finally:
        signal.signal(signal.SIGINT, before)
        ray.shutdown()
    assert died.exists()
    ranks: list[dict[tuple[int, int], list[int]]] = [{}, {}]
    for rank, found in enumerate(ranks):
        for line in (seen / str(rank)).read_text().splitlines():
            epoch, step, samples = line.split(" ", 2)
            # A step that is repeated after the last checkpoint has the same samples.
            assert found.setdefault((int(epoch), int(step)), json.loads(samples)) == json.loads(samples)
    assert [ranks[0][step] + ranks[1][step] for step in sorted(ranks[0])] == reference
