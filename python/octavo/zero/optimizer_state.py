# SPDX-License-Identifier: Apache-2.0
"""What an engine's optimizer keeps of each parameter, by name: this rank's part of it, and how the parts of other ranks
become it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.optim.shards import as_shard, local

if TYPE_CHECKING:
    from octavo.zero.engine import ZeroEngine
    from octavo.zero.parts import OwnPart

States = dict[str, dict[str, Any]]  # by parameter's name and by key; tensors are flat, or scalars that all ranks have


def parts_by_name(engine: ZeroEngine) -> dict[str, OwnPart]:
    return {name: engine.parts[p] for name, p in engine.module.named_parameters() if p in engine.parts}


def states_by_name(engine: ZeroEngine) -> States:
    """In the form of checkpoints: what is cut as its parameter is, is a DTensor."""
    states = engine.optimizer.state_dict()["state"]
    return {name: states.get(place, {}) for place, name in enumerate(_names_in_order(engine))}


def own_states(engine: ZeroEngine) -> States:
    """As plain tensors."""
    return {
        name: {key: local(value) if isinstance(value, Tensor) else value for key, value in state.items()}
        for name, state in states_by_name(engine).items()
    }


def options_of(engine: ZeroEngine) -> list[dict[str, Any]]:
    """Of the optimizer's groups."""
    groups = engine.optimizer.state_dict()["param_groups"]
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def require_groups(engine: ZeroEngine, options: list[dict[str, Any]]) -> None:
    if len(options) != len(engine.optimizer.param_groups):
        raise ValueError(
            f"[zero.load_checkpoint] expected {len(engine.optimizer.param_groups)} parameter groups of the optimizer, "
            f"got {len(options)}; nothing has changed"
        )
    if type(engine.optimizer).__module__.startswith("octavo."):
        return  # they take states of torch's, too, and know what these lack
    for group, saved in zip(engine.optimizer.param_groups, options, strict=True):
        missing, unknown = group.keys() - saved.keys() - {"params"}, saved.keys() - group.keys()
        if missing and unknown:
            raise ValueError(
                f"[zero.load_checkpoint] this is the checkpoint of another optimizer than "
                f"{type(engine.optimizer).__name__}: its options have {', '.join(sorted(unknown))}, and no "
                f"{', '.join(sorted(missing))}; nothing has changed"
            )


def _as_here(here: Any, saved: Any) -> Any:
    """An option as JSON has it, of the type that the optimizer's own has."""
    if isinstance(here, Tensor):
        return torch.full_like(here, saved)
    return tuple(saved) if isinstance(here, tuple) else saved


def load_states(engine: ZeroEngine, states: Mapping[str, Mapping[str, Any]], options: list[dict[str, Any]]) -> None:
    """Takes back `states_by_name`, or `own_states`, and `options_of`. ValueError where they do not fit."""
    require_groups(engine, options)
    groups = engine.optimizer.state_dict()["param_groups"]
    merged = [
        {key: _as_here(group.get(key), value) for key, value in (group | saved).items()} | {"params": group["params"]}
        for saved, group in zip(options, groups, strict=True)
    ]
    parts = parts_by_name(engine)
    by_place = {
        place: {key: _as_its_parameter(parts[name], value) for key, value in states[name].items()}
        for place, name in enumerate(_names_in_order(engine))
        if states.get(name)
    }
    engine.optimizer.load_state_dict({"state": by_place, "param_groups": merged})


def of_this_rank(engine: ZeroEngine, ranks: Iterable[Mapping[str, Mapping[str, Any]]]) -> States:
    """From the `own_states` of all ranks of another world, in their order."""
    return redistributed({name: engine.owned(part) for name, part in parts_by_name(engine).items()}, ranks)


def redistributed(owned: Mapping[str, tuple[int, int]], ranks: Iterable[Mapping[str, Mapping[str, Any]]]) -> States:
    """What a rank has that owns these elements of each parameter, a first one and how many, of the `own_states` of all
    ranks of some world, in their order. One of them is held at a time."""
    ends = dict.fromkeys(owned, 0)
    own: States = {name: {} for name in owned}
    for states in ranks:
        for name, state in states.items():
            begin, end = ends[name], ends[name]
            for key, value in state.items():
                if not isinstance(value, Tensor) or value.ndim == 0:
                    own[name][key] = value
                    continue
                end = begin + len(value)
                first, count = owned[name]
                room = own[name].setdefault(key, value.new_zeros(count))
                low, high = max(first, begin), min(first + count, end)
                if low < high:
                    room[low - first : high - first] = value[low - begin : high - begin]
            ends[name] = end
    return own


def bytes_of(engine: ZeroEngine) -> int:
    """That this rank's states have, in the format in which the optimizer works with them."""
    states = engine.optimizer.state.values()
    return sum(local(value).nbytes for state in states for value in state.values() if isinstance(value, Tensor))


def _names_in_order(engine: ZeroEngine) -> list[str]:
    """Of the optimizer's parameters."""
    names = {part.values: name for name, part in parts_by_name(engine).items()}
    return [names[values] for group in engine.optimizer.param_groups for values in group["params"]]


def _as_its_parameter(part: OwnPart, value: Any) -> Any:
    is_own = isinstance(value, Tensor) and value.ndim > 0 and not isinstance(value, type(part.values.data))
    return as_shard(value, part.values) if is_own else value
