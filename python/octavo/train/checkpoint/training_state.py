# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds of a running job, and how it is restored: rank 0's part and each rank's own part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from octavo import durable_files
from octavo.train import devices
from octavo.train.checkpoint import state_file
from octavo.train.checkpoint.restore import Found, broadcast_tree, load_rank_states
from octavo.train.checkpoint.writer import MODEL, OPTIMIZER, TRAINER
from octavo.train.launch.world import World
from octavo.train.report.metrics import Totals
from octavo.train.strategy.base import Strategy


def shared_writer(strategy: Strategy, tokenizer: PreTrainedTokenizerFast, totals: Totals) -> Callable[[Path], None]:
    """Returns a function that all ranks call together and by which rank 0 writes its files into a folder: model,
    tokenizer, optimizer, totals."""

    def write(folder: Path) -> None:
        strategy.save_model(folder)
        if not strategy.world.is_main:
            return
        tokenizer.save_pretrained(folder)
        state_file.save_tree(folder / OPTIMIZER, strategy.shared_state(), "optimizer")
        durable_files.write_json(folder / TRAINER, totals.to_dict())

    return write


def rank_state(strategy: Strategy, totals: Totals) -> dict[str, Any]:
    """Returns this rank's own state: its error-feedback residuals, its random streams and what it has counted of its
    skipped steps; with local steps also its parameters and its optimizer's state, with ZeRO also its part of the
    optimizer's state."""
    rng = {"rng": torch.get_rng_state(), "device_rng": devices.rng_state(strategy.device)}
    return {"handle": strategy.own_state(), "skipped": [totals.skipped_steps, totals.skipped_in_a_row], **rng}


def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Fills `model` from a verified step folder. Raises RuntimeError where names or shapes differ, and ValueError for a
    file of another format."""
    try:
        load_model(model, folder / MODEL)
    except SafetensorError as error:
        raise ValueError(
            f"[train.training_state] {folder / MODEL} is not what this run has saved: {error}; restore it, or start "
            f"over with --fresh"
        ) from error


def restore(
    strategy: Strategy, world: World, optimizer_state: Any, totals: Totals, folder: Path, found: Found
) -> str | None:
    """Loads a checkpoint into a strategy that was just built: rank 0's `optimizer_state`, and what each rank saved of
    its own, also into rank 0's `totals`. Returns a sentence about what was lost, if anything was.

    With the number of ranks that saved it the run continues with the same bits as an unbroken one. With another number,
    the mean of their error-feedback residuals is redistributed, and a rank without a predecessor keeps the random
    streams with which it was seeded.
    """
    common = broadcast_tree(world, optimizer_state, source=0)
    states = load_rank_states(world, folder, found, of_all=strategy.needs_all_ranks(common))
    own: dict[str, Any] = {}

    def handles(states: Iterable[dict[str, Any]]) -> Iterator[Any]:
        for rank, state in enumerate(states):
            if rank == world.rank:
                own.update({name: value for name, value in state.items() if name != "handle"})
            yield state["handle"]

    if isinstance(states, dict):
        own = states
        lost = strategy.load(common, states["handle"])
    else:
        of_all = handles(states)
        lost = strategy.load(common, of_all)
        for _ in of_all:  # reads the rest of this rank's state where the strategy has not gone through the states
            pass
    if own:
        torch.set_rng_state(own["rng"])
        devices.set_rng_state(strategy.device, own.get("device_rng"))
    if strategy.steps_alone and (not world.is_main or "skipped" in own):
        # Each rank has skipped steps of its own. A checkpoint of an older version has only rank 0's, in its totals.
        totals.skipped_steps, totals.skipped_in_a_row = own.get("skipped", (0, 0))
    return lost
