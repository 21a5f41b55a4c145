# SPDX-License-Identifier: Apache-2.0
"""Checks whether states of ``Outer.state_dict`` fit together, and whether values are finite."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from octavo.arguments import is_whole_number, require_ranks
from octavo.finite import all_finite
from octavo.optim.checks import require_same_kind
from octavo.parameters import require_memory_orders

SCHEMA = 5
_WHERE = "[outer.load_state_dict]"
_NUMBERS = ("rank", "world_size", "step")
_TENSORS = ("own", "shared", "buffers", "last_buffers")  # by name


def states_of(state_dict: Any) -> list[Mapping[str, Any]]:
    """Returns one state, or those of several ranks, as a list. Raises TypeError or ValueError for anything else."""
    wanted = f"{_WHERE} pass what state_dict() returned, on this rank or on all ranks"
    if not isinstance(state_dict, (Mapping, Sequence)) or isinstance(state_dict, str):
        raise TypeError(f"{wanted}, got {type(state_dict).__name__}")
    states = [state_dict] if isinstance(state_dict, Mapping) else list(state_dict)
    for one in states:
        if not isinstance(one, Mapping):
            raise TypeError(f"{wanted}, got a list with {type(one).__name__}")
    if not states or any(one.get("schema") != SCHEMA for one in states):
        raise ValueError(
            f"{_WHERE} expected what state_dict() of this version returned (schema {SCHEMA}), on this rank or all"
        )
    for one in states:
        _require_entries(one, wanted)
    return states


def _require_entries(state: Mapping[str, Any], wanted: str) -> None:
    """Raises ValueError where an entry is missing, TypeError where one is of another kind."""
    for key in (*_NUMBERS, "options", "positions", *_TENSORS, "inner"):
        if key not in state:
            raise ValueError(f"{wanted}: a state has no {key!r}")
        value = state[key]
        if key in _NUMBERS:
            fits = is_whole_number(value)
        elif key in _TENSORS:
            fits = isinstance(value, Mapping) and all(isinstance(tensor, Tensor) for tensor in value.values())
        else:
            fits = isinstance(value, Sequence if key == "positions" else Mapping)
        if not fits:
            raise TypeError(f"{wanted}: its {key!r} is {type(value).__name__}, or has entries of another type")


def states_by_rank(
    states: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    inner: Any,
) -> dict[int, Mapping[str, Any]]:
    """Returns the states (``states_of``), which some ranks of one world have saved, by rank.

    - ``options``: what the states must have been saved with.
    - ``parameters``: the model's parameters, by name.
    - ``buffers``: the buffers of the model that are saved, by name.
    - ``inner``: the inner optimizer.

    Raises ValueError where a state does not fit.
    """
    steps = {(int(one["world_size"]), int(one["step"])) for one in states}
    if len(steps) > 1:
        raise ValueError(
            f"{_WHERE} expected states of one step, got those of (ranks, step) {', '.join(map(str, sorted(steps)))}"
        )
    ranks = [int(one["rank"]) for one in states]
    require_ranks(ranks, int(states[0]["world_size"]), "outer.load_state_dict")
    for what, ours in options.items():
        theirs = states[0]["options"].get(what)
        if theirs != ours:
            raise ValueError(
                f"{_WHERE} the state was saved with {what} {theirs}, this outer loop has {what} {ours}: build it as "
                f"the one that was saved"
            )
    missing = [name for name in parameters if any(f"parameter/{name}" not in one["own"] for one in states)]
    if missing:
        raise ValueError(f"{_WHERE} the state is of another model: it has no {missing[0]}")
    for one in states:
        _require_values(one, parameters)
        # Only what error feedback remembers is flat. States of older versions have no orders.
        if "memory_orders" in one and any(not key.startswith("parameter/") for key in one["own"]):
            require_memory_orders(parameters, one["memory_orders"], "outer.load_state_dict")
    for name, buffer in buffers.items():
        shapes = [one["buffers"][name].shape if name in one["buffers"] else None for one in states]
        if other := [shape for shape in shapes if shape != buffer.shape]:
            found = "no buffer" if other[0] is None else f"a buffer of {tuple(other[0])}"
            raise ValueError(
                f"{_WHERE} the state is of another model: it has {found} {name}, not {tuple(buffer.shape)}"
            )
    for one in states:
        if "param_groups" in one["inner"]:
            require_same_kind(inner, one["inner"]["param_groups"], "outer.load_state_dict")
    return dict(zip(ranks, states, strict=True))


def _require_values(state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Raises ValueError where a parameter of the state has another shape, or where all later rounds would be skipped,
    because what is kept of earlier ones is not finite."""
    for name, parameter in parameters.items():
        shape = state["own"][f"parameter/{name}"].shape
        if shape != parameter.shape:
            raise ValueError(
                f"{_WHERE} the state is of another model: its {name} has the shape {tuple(shape)}, not "
                f"{tuple(parameter.shape)}"
            )
    kept = {**state["shared"], **state["own"]}
    # A mean that has arrived and parameters may have a NaN in them: their round is then skipped. What a linear map
    # remembers may be positions, whose bits are no numbers.
    numbers = {k: v for k, v in kept.items() if not k.startswith(("arrived/", "parameter/")) and "/memory/" not in k}
    bad = [key for key, value in numbers.items() if not is_finite(value)]
    if bad:
        raise ValueError(
            f"{_WHERE} {bad[0]!r} of the state of rank {int(state['rank'])} has a NaN or an infinity, and all later "
            f"rounds would be skipped: continue from an older state"
        )


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
        return not value.is_floating_point() or bool(all_finite([value]))
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_finite, value))
    return not isinstance(value, float) or not math.isnan(value)
