"""Trains with Ray Train, and resumes with the right samples after a worker died.

    python docs/examples/ray_train.py s3://bucket/points s3://bucket/checkpoints

The dataset has the columns ``x`` (float32[8]) and ``label`` (int64, 0 … 2).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from concurrent_loader import ConcurrentDataLoader, ShardDataset


def train_worker(config: dict[str, Any]) -> None:
    """Trains in one of Ray's workers; ``config`` has the arguments of `train`."""
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ShardDataset(config["url"]) as dataset:
        # Ray has initialized torch.distributed, where the loader finds its rank and the number of ranks.
        batch_size = config["global_batch_size"] // dist.get_world_size()
        loader = ConcurrentDataLoader(dataset, batch_size, shuffle=True, seed=0, drop_last=True)
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                state = torch.load(Path(folder) / "state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
        for epoch in range(loader.epoch, config["epochs"]):
            loader.set_epoch(epoch)  # keeps the step that was restored for this epoch
            for batch in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                loss.backward()
                optimizer.step()
                if config.get("on_step") is not None:
                    config["on_step"](batch)
                report(loader, model, optimizer, loss.item())


def report(loader: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: float) -> None:
    """Reports a step to Ray; the first worker adds a checkpoint. Real training does this every few minutes."""
    if dist.get_rank() != 0:
        ray.train.report({"loss": loss})
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def train(url: str, storage_path: str, *, epochs: int = 2, global_batch_size: int = 64, on_step: Any = None) -> Any:
    """Trains with two workers; a worker that dies is replaced up to three times.

    Args:
        url: URL of the dataset.
        storage_path: Folder or URL of the checkpoints, which every machine reaches.
        epochs: Number of epochs.
        global_batch_size: Samples per step of all workers together.
        on_step: Function that gets each batch, in the worker.
    """
    trainer = ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config={"url": url, "epochs": epochs, "global_batch_size": global_batch_size, "on_step": on_step},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="points", storage_path=storage_path, failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    )
    return trainer.fit()


if __name__ == "__main__":
    train(*sys.argv[1:3])
