"""Trains with Accelerate, and resumes from a saved state, also in the middle of an epoch.

    accelerate launch docs/examples/accelerate_loop.py s3://bucket/points checkpoint

The dataset has the columns ``x`` (float32[8]) and ``label`` (int64, 0 … 2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from concurrent_loader import ConcurrentDataLoader, ShardDataset


def train(
    url: str,
    folder: str,
    *,
    epochs: int = 2,
    global_batch_size: int = 64,
    max_steps: int | None = None,
    on_step: Callable[[Any, torch.nn.Module], None] = lambda batch, model: None,
    **options: Any,
) -> None:
    """Trains, and saves the state of everything after each epoch and at the end.

    Args:
        url: URL of the dataset.
        folder: Folder of the state; training resumes from it if it exists.
        epochs: Total number of epochs.
        global_batch_size: Samples per step of all processes together.
        max_steps: Number of steps after which to stop; None trains to the end.
        on_step: Function that gets each batch and the model after its gradients were averaged.
        **options: Further arguments of the `Accelerator`.
    """
    accelerator = Accelerator(**options)
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(8, 3)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ShardDataset(url) as dataset:
        # Built after the Accelerator: it finds its rank by itself, and puts batches on the device by itself.
        loader = ConcurrentDataLoader(
            dataset,
            global_batch_size // accelerator.num_processes,
            shuffle=True,
            seed=0,
            drop_last=True,
            device=accelerator.device,
        )
        # The loader passes through prepare as it is: it has its own share of each epoch already.
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        accelerator.register_for_checkpointing(loader)
        if Path(folder).exists():
            accelerator.load_state(folder)
        step = 0
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)  # keeps the step that was restored for this epoch
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"]))
                on_step(batch, model)
                optimizer.step()
                step += 1
                if step == max_steps:
                    accelerator.save_state(folder)
                    accelerator.end_training()
                    return
            accelerator.save_state(folder)
    accelerator.end_training()


if __name__ == "__main__":
    train(*sys.argv[1:3])
