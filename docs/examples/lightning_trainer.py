"""Trains with Lightning, which saves and restores the loader's position, also in the middle of an epoch.

    python docs/examples/lightning_trainer.py s3://bucket/points checkpoints

The dataset has the columns ``x`` (float32[8]) and ``label`` (int64, 0 … 2).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from concurrent_loader import ConcurrentDataLoader, ShardDataset


class Points(lightning.LightningDataModule):
    """Loads the training and validation data.

    Args:
        url: URL of the dataset.
        global_batch_size: Samples a step, all processes together.
    """

    def __init__(self, url: str, global_batch_size: int = 64) -> None:
        super().__init__()
        self.url = url
        self.global_batch_size = global_batch_size

    def train_dataloader(self) -> ConcurrentDataLoader:
        """Creates the loader after Lightning has started its processes, so that it finds its rank."""
        batch_size = self.global_batch_size // self.trainer.world_size
        return ConcurrentDataLoader(ShardDataset(self.url), batch_size, shuffle=True, seed=0, drop_last=True)

    def val_dataloader(self) -> ConcurrentDataLoader:
        """Returns all samples in order, each on one rank. For brevity, these are the training samples."""
        return ConcurrentDataLoader(ShardDataset(self.url), self.global_batch_size // self.trainer.world_size)


class Classifier(lightning.LightningModule):
    """Classifies points with one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Returns the loss of a batch."""
        return torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["label"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs the accuracy without the padding of the last batch."""
        count = len(batch["label"]) - batch.num_padded
        correct = (self.layer(batch["x"]).argmax(1) == batch["label"])[:count].float()
        self.log("accuracy", correct.mean(), batch_size=count, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    url: str, folder: str, *, model: lightning.LightningModule | None = None, resume: str | None = None, **options: Any
) -> lightning.Trainer:
    """Trains with a checkpoint every ten steps.

    Args:
        url: URL of the dataset.
        folder: Folder for the checkpoints.
        model: Model to train; a `Classifier` by default.
        resume: Path of the checkpoint to resume from.
        **options: Further arguments of the `Trainer`.
    """
    lightning.seed_everything(0, verbose=False)
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [ModelCheckpoint(folder, every_n_train_steps=10, save_top_k=-1)],
    }
    trainer = lightning.Trainer(**{**defaults, **options})
    trainer.fit(model or Classifier(), datamodule=Points(url), ckpt_path=resume)
    return trainer


if __name__ == "__main__":
    checkpoints = sorted(Path(sys.argv[2]).glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    fit(*sys.argv[1:3], resume=str(checkpoints[-1]) if checkpoints else None)
