# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds of a running job, and how it comes back: rank 0's part and each rank's own part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from octavo import durable_files
from octavo.train import device
from octavo.train.checkpoint import state_file
from octavo.train.checkpoint.restore import Found, broadcast_tree, load_rank_states
from octavo.train.checkpoint.writer import MODEL, OPTIMIZER, TRAINER
from octavo.train.engine.base import Engine
from octavo.train.launch.world import World
from octavo.train.report.metrics import Totals


def shared_writer(engine: Engine, tokenizer: PreTrainedTokenizerFast, totals: Totals) -> Callable[[Path], None]:
    """A function that all ranks call together, by which rank 0 writes its files into a folder: model, tokenizer,
    optimizer, totals."""

    def write(folder: Path) -> None:
        engine.save_model(folder)
        if not engine.world.is_main:
            return
        tokenizer.save_pretrained(folder)
        state_file.save_tree(folder / OPTIMIZER, engine.common_state(), "optimizer")
        durable_files.write_json(folder / TRAINER, totals.to_dict())

    return write


def rank_state(engine: Engine) -> dict[str, Any]:
    """This rank's own state: its error-feedback residuals, with local steps its parameters and its optimizer, with ZeRO
    its part of the optimizer's, and its random streams."""
    rng = {"rng": torch.get_rng_state(), "device_rng": device.rng_state(engine.device)}
    return {"handle": engine.own_state(), **rng}


def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Fills `model` from a verified step folder. Raises RuntimeError where names or shapes differ."""
    load_model(model, folder / MODEL)


def restore(engine: Engine, world: World, optimizer_state: Any, folder: Path, found: Found) -> str | None:
    """Puts a checkpoint into a freshly built engine: rank 0's `optimizer_state`, and what ranks kept for themselves.
    Returns a sentence on what was lost, if anything was.

    With as many ranks as saved it the run goes on bit by bit. Where their number was another, the mean of their
    error-feedback residuals is redistributed, and a rank without a predecessor keeps the random streams that it was
    seeded with.
    """
    common = broadcast_tree(world, optimizer_state, source=0)
    states = load_rank_states(world, folder, found, of_all=engine.needs_all_ranks(common))
    own: dict[str, Any] = {}

    def handles(states: Iterable[dict[str, Any]]) -> Iterator[Any]:
        for rank, state in enumerate(states):
            if rank == world.rank:
                own.update(rng=state["rng"], device_rng=state.get("device_rng"))
            yield state["handle"]

    if isinstance(states, dict):
        own = states
        lost = engine.load(common, states["handle"])
    else:
        of_all = handles(states)
        lost = engine.load(common, of_all)
        for _ in of_all:  # random streams, where the engine has not asked
            pass
    if own:
        torch.set_rng_state(own["rng"])
        device.set_rng_state(engine.device, own.get("device_rng"))
    return lost
