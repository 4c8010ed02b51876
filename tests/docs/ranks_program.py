"""Runs an example of docs/examples with several processes, as torchrun would, but importing everything only once.

Reads its orders as JSON from standard input: the example, and a list of runs, each with the number of processes and the
arguments. Every process leaves what it saw in a JSON file: the samples and the averaged gradients of each step.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # what optimizers import at their first step
from torch.distributed import TCPStore

PATIENCE_S = 60


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_rank(example: ModuleType, rank: int, world_size: int, port: int, order: dict[str, Any]) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    seen: dict[str, list[Any]] = {"samples": [], "gradients": []}

    def note_gradients(model: Any) -> None:
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        seen["gradients"].append([float(number) for gradient in gradients for number in gradient])

    def on_step(batch: Any, model: Any) -> None:
        seen["samples"].append(batch.sample_ids.tolist())
        note_gradients(model)

    if not hasattr(example, "fit"):
        example.train(*order["arguments"], on_step=on_step, **order["options"])
    else:

        class Watched(example.Classifier):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                seen["samples"].append(batch.sample_ids.tolist())
                return super().training_step(batch, batch_idx)

            def on_before_optimizer_step(self, optimizer: Any) -> None:
                note_gradients(self)

            def note(self, batch: Any, batch_idx: int) -> None:
                seen["then"][-1].append(batch.sample_ids[: len(batch.sample_ids) - batch.num_padded].tolist())

            test_step = predict_step = note

        torch.manual_seed(0)
        model = Watched()
        trainer = example.fit(*order["arguments"], model=model, devices=world_size, **order["options"])
        model.validation_step = model.note
        seen["then"] = []
        for name in order.get("then", []):
            seen["then"].append([])
            getattr(trainer, name)(model, trainer.datamodule.val_dataloader())
    Path(order["out"], f"{rank}.json").write_text(json.dumps(seen))


def main() -> int:
    orders = json.load(sys.stdin)
    example = load(orders["example"])
    fork = multiprocessing.get_context("fork")
    for order in orders["runs"]:
        Path(order["out"]).mkdir()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port, world_size = listening.getsockname()[1], order["world_size"]
            ranks = [
                fork.Process(target=run_rank, args=(example, rank, world_size, port, order))
                for rank in range(world_size)
            ]
            for process in ranks:
                process.start()
            store = TCPStore("127.0.0.1", port, is_master=True, master_listen_fd=listening.detach())
        for process in ranks:
            process.join(PATIENCE_S)
        failed = [process for process in ranks if process.exitcode]
        del store
        for process in failed:
            process.kill()
        if failed:
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
