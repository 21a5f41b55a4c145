# SPDX-License-Identifier: Apache-2.0
"""Checks whether states of ``Outer.state_dict`` fit together, and whether values are finite."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SCHEMA = 3


def states_by_rank(
    states: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    parameters: Iterable[str],
    buffers: Mapping[str, Tensor],
    groups: Sequence[int],
) -> dict[int, Mapping[str, Any]]:
    """Returns the states, which ``Outer.state_dict`` returned on some ranks of one world, by rank.

    - ``options``: what the states must have been saved with.
    - ``parameters``: the names of the model's parameters.
    - ``buffers``: the buffers of the model that are saved, by name.
    - ``groups``: how many parameters each group of the inner optimizer has.

    Raises ValueError where a state does not fit.
    """
    where = "[outer.load_state_dict]"
    if not states or any(one.get("schema") != SCHEMA for one in states):
        raise ValueError(
            f"{where} expected what state_dict() of this version returned (schema {SCHEMA}), on this rank or all"
        )
    by_rank = {int(one["rank"]): one for one in states}
    steps = {(int(one["world_size"]), int(one["step"])) for one in states}
    if len(steps) > 1:
        raise ValueError(
            f"{where} expected states of one step, got those of (ranks, step) {', '.join(map(str, sorted(steps)))}"
        )
    if len(by_rank) < len(states):
        raise ValueError(f"{where} expected one state of each rank, got ranks {[int(o['rank']) for o in states]}")
    for what, ours in options.items():
        theirs = states[0]["options"].get(what)
        if theirs != ours:
            raise ValueError(
                f"{where} the state was saved with {what} {theirs}, this outer loop has {what} {ours}: build it as "
                f"the one that was saved"
            )
    missing = [name for name in parameters if any(f"parameter/{name}" not in one["own"] for one in states)]
    if missing:
        raise ValueError(f"{where} the state is of another model: it has no {missing[0]}")
    for name, buffer in buffers.items():
        shapes = [one["buffers"][name].shape if name in one["buffers"] else None for one in states]
        if other := [shape for shape in shapes if shape != buffer.shape]:
            found = "no buffer" if other[0] is None else f"a buffer of {tuple(other[0])}"
            raise ValueError(f"{where} the state is of another model: it has {found} {name}, not {tuple(buffer.shape)}")
    for one in states:
        theirs = [len(group["params"]) for group in one["inner"].get("param_groups", [])]
        if "param_groups" in one["inner"] and theirs != list(groups):
            raise ValueError(f"{where} the state is of another inner optimizer: its groups have other parameters")
    return by_rank


def require_of_rank(state: Mapping[str, Any], rank: int, world_size: int) -> None:
    """Raises ValueError unless the state was saved by rank ``rank`` of a world of ``world_size`` ranks."""
    saved_rank, saved_size = int(state["rank"]), int(state["world_size"])
    if (saved_rank, saved_size) != (rank, world_size):
        raise ValueError(
            f"[outer.load_state_dict] this is rank {rank} of {world_size}, the state is of rank {saved_rank} of "
            f"{saved_size}: load what this rank saved, or a list of the states of all ranks"
        )


def is_finite(value: Any) -> bool:
    """Whether a value, and all that it holds, is finite: no NaN in numbers, no NaN or infinity in tensors."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_finite, value))
    return not isinstance(value, float) or not math.isnan(value)
