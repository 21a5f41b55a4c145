# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds of a running job, and how it comes back: rank 0's part and each rank's own part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_model
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from octavo.train import device
from octavo.train.checkpoint import durable_files, state_file
from octavo.train.checkpoint.writer import MODEL, OPTIMIZER, TRAINER
from octavo.train.engine import Engine
from octavo.train.launch.world import World
from octavo.train.report.metrics import Totals


def shared_writer(engine: Engine, tokenizer: PreTrainedTokenizerFast, totals: Totals) -> Callable[[Path], None]:
    """A function that writes rank 0's files into a folder: model, tokenizer, optimizer, totals."""

    def write(folder: Path) -> None:
        disable_progress_bar()  # a bar for one file of a second
        engine.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        state_file.save_tree(folder / OPTIMIZER, engine.optimizer.state_dict())
        durable_files.write_json(folder / TRAINER, totals.to_dict())

    return write


def rank_state(engine: Engine) -> dict[str, Any]:
    """This rank's own state: the error memories of its wire and its random streams."""
    rng = {"rng": torch.get_rng_state(), "device_rng": device.rng_state(engine.device)}
    return {"handle": engine.handle.state_dict(), **rng}


def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Fills `model` from a verified step folder. Raises RuntimeError where names or shapes differ."""
    load_model(model, folder / MODEL)


def restore(engine: Engine, world: World, optimizer_state: Any, own_state: dict[str, Any]) -> None:
    """Puts `own_state` and rank 0's `optimizer_state` into a freshly built engine."""
    engine.handle.load_state_dict(own_state["handle"])
    engine.optimizer.load_state_dict(from_main(world, optimizer_state))
    torch.set_rng_state(own_state["rng"])
    device.set_rng_state(engine.device, own_state.get("device_rng"))


def from_main(world: World, value: Any) -> Any:
    """Rank 0's tree of tensors and plain values on every rank; tensors travel as bytes, one at a time."""
    tensors, skeleton = state_file.pack(value) if world.is_main else ({}, None)
    shapes = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
    skeleton, shapes = world.from_main((skeleton, shapes))
    for name, (shape, dtype) in shapes.items():
        if not world.is_main:
            tensors[name] = torch.empty(shape, dtype=dtype)
        if tensors[name].numel():
            dist.broadcast(tensors[name].view(-1).view(torch.uint8), src=0)
    return state_file.unpack(tensors, skeleton)
