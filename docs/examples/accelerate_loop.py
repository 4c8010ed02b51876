"""Trains with Accelerate, and goes on where a state was saved, also in the middle of an epoch.

    accelerate launch docs/examples/accelerate_loop.py s3://bucket/points checkpoint

The data set has the columns ``x`` (float32[8]) and ``label`` (int64, 0 … 2).
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
    """Trains, and saves everything's state after each epoch and at the end.

    Args:
        url: The data set.
        folder: Of the state; training goes on from it if it exists.
        epochs: How many in all.
        global_batch_size: Samples a step, all processes together.
        max_steps: Stop after so many steps, wherever that is.
        on_step: Called with each batch and the model after its gradients were averaged.
        **options: For the `Accelerator`.
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
