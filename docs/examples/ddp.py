"""Trains with DistributedDataParallel, and resumes at any step with any number of processes.

    torchrun --nproc-per-node 4 docs/examples/ddp.py s3://bucket/points checkpoint.pt

The dataset has the columns ``x`` (float32[8]) and ``label`` (int64, 0 … 2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from concurrent_loader import ConcurrentDataLoader, ShardDataset


def train(
    url: str,
    checkpoint: str,
    *,
    epochs: int = 2,
    global_batch_size: int = 64,
    max_steps: int | None = None,
    on_step: Callable[[Any, torch.nn.Module], None] = lambda batch, model: None,
) -> None:
    """Trains, and writes a checkpoint after each epoch and at the end.

    Args:
        url: URL of the dataset.
        checkpoint: Path of the checkpoint; training resumes from it if it exists.
        epochs: Total number of epochs.
        global_batch_size: Samples per step of all processes together. Keep it when their number changes.
        max_steps: Number of steps after which to stop; None trains to the end.
        on_step: Function that gets each batch and the model after its gradients were averaged.
    """
    dist.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ShardDataset(url) as dataset:
        # Built after init_process_group: it finds its rank and the number of ranks by itself.
        loader = ConcurrentDataLoader(
            dataset, global_batch_size // dist.get_world_size(), shuffle=True, seed=0, drop_last=True
        )

        def save() -> None:
            if dist.get_rank() == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save(state, f"{checkpoint}.new")
                Path(f"{checkpoint}.new").replace(checkpoint)
            dist.barrier()

        if Path(checkpoint).exists():
            state = torch.load(checkpoint)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
        step = 0
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)  # keeps the step that was restored for this epoch
            for batch in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"]).backward()
                on_step(batch, model)
                optimizer.step()
                step += 1
                if step == max_steps:
                    save()
                    dist.destroy_process_group()
                    return
            save()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(*sys.argv[1:3])
