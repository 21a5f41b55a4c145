# SPDX-License-Identifier: Apache-2.0
"""What an engine's optimizer keeps of each parameter, by name: this rank's part, and how it is made of the parts of
other ranks."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from octavo.optim.checks import require_same_kind
from octavo.optim.shards import as_shard, is_sharded, local
from octavo.optim.state_formats import floats_of, names_of
from octavo.parameters import plain_name

if TYPE_CHECKING:
    from octavo.zero.engine import ZeroEngine
    from octavo.zero.parts import OwnPart

States = dict[str, dict[str, Any]]  # by parameter's name and key: flat tensors, and scalars that are equal on all ranks

_WHERE = "zero.load_optimizer_state"
_CODES = "_codes"
_NUMBERS = {"step", "eta", "mu", "mu_product"}  # which torch's optimizers keep of a parameter, whatever its shape
_HOOKS = ("_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks")


def parameters_by_name(engine: ZeroEngine) -> dict[str, nn.Parameter]:
    """Returns the parameters that are shared out."""
    return {plain_name(name): p for name, p in engine.module.named_parameters() if p in engine.parts}


def parts_by_name(engine: ZeroEngine) -> dict[str, OwnPart]:
    return {name: engine.parts[p] for name, p in parameters_by_name(engine).items()}


def states_by_name(engine: ZeroEngine) -> States:
    """Returns the states in the form of checkpoints: what is cut as its parameter is, is a DTensor."""
    with _without_hooks_of_the_program(engine.optimizer):
        states = engine.optimizer.state_dict()["state"]
    return {name: states.get(place, {}) for place, name in enumerate(_names_in_order(engine))}


def whole_states(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> States:
    """Returns what an optimizer of whole parameters keeps of those of `parameters`, by name, as one rank that owns
    everything would have it in `own_states`. Codes of our optimizers become floats. Raises ValueError for tensors that
    are not of their parameter's shape."""
    names = {parameter: name for name, parameter in parameters.items()}
    states: States = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state and parameter in names:
                name, floats = names[parameter], decoded(state, group.get("optim_bits", 32), parameter)
                states[name] = {key: _flat(key, value, parameter, name) for key, value in floats.items()}
    return states


def decoded(state: Mapping[str, Any], bits: int, parameter: Tensor) -> dict[str, Any]:
    """Returns a state with floats in place of codes, of `bits`, and their scales."""
    moments = [key.removesuffix(_CODES) for key in state if key.endswith(_CODES)]
    floats = {moment: floats_of(state, moment, bits, parameter.shape) for moment in moments}
    coded = {name for moment in moments for name in names_of(moment)}
    return {key: value for key, value in state.items() if key not in coded} | floats


def _flat(key: str, value: Any, parameter: Tensor, name: str) -> Any:
    is_number = not isinstance(value, Tensor) or (value.ndim == 0 and (parameter.ndim > 0 or key in _NUMBERS))
    if is_number:
        return value
    if value.shape != parameter.shape:
        raise ValueError(
            f"[zero.initialize] the optimizer keeps {key} of {name} as {tuple(value.shape)} of "
            f"{tuple(parameter.shape)}, which cannot be shared out: give a new optimizer, without state"
        )
    return value.detach().reshape(-1)


@contextmanager
def _without_hooks_of_the_program(optimizer: Optimizer) -> Iterator[None]:
    """A context in which ``state_dict()`` and ``load_state_dict()`` take and return torch's own form, which the
    program's hooks may wrap."""
    own = {name: getattr(optimizer, name) for name in _HOOKS}
    try:
        for name in _HOOKS:
            setattr(optimizer, name, OrderedDict())
        yield
    finally:
        for name, hooks in own.items():
            setattr(optimizer, name, hooks)


def own_states(engine: ZeroEngine) -> States:
    """Returns the states of this rank's parts, as plain tensors."""
    return {
        name: {key: local(value) if isinstance(value, Tensor) else value for key, value in state.items()}
        for name, state in states_by_name(engine).items()
    }


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Returns the options of the optimizer's parameter groups."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _as_here(here: Any, saved: Any) -> Any:
    """Returns an option that was read from JSON, as the type that the optimizer's own option has."""
    if isinstance(here, Tensor):
        return torch.full_like(here, saved)
    return tuple(saved) if isinstance(here, tuple) else saved


def load_states(engine: ZeroEngine, states: Mapping[str, Mapping[str, Any]], options: list[dict[str, Any]]) -> None:
    """Restores `states_by_name`, or `own_states`, and `options_of`. Raises ValueError where they do not fit."""
    require_same_kind(engine.optimizer, options, _WHERE)
    places = itertools.count()
    merged = [
        {key: _as_here(group.get(key), value) for key, value in (group | saved).items()}
        | {"params": [next(places) for _ in group["params"]]}
        for saved, group in zip(options, engine.optimizer.param_groups, strict=True)
    ]
    parts = parts_by_name(engine)
    _require_known(states, parts)
    by_place = {
        place: {key: _as_its_parameter(name, parts[name], value) for key, value in states[name].items()}
        for place, name in enumerate(_names_in_order(engine))
        if states.get(name)
    }
    with _without_hooks_of_the_program(engine.optimizer):
        engine.optimizer.load_state_dict({"state": by_place, "param_groups": merged})


def of_this_rank(engine: ZeroEngine, ranks: Iterable[Mapping[str, Mapping[str, Any]]]) -> States:
    """Returns the states of this rank, made of the `own_states` of all ranks of another world, in their order."""
    parts = parts_by_name(engine)
    sizes = {name: part.values.numel() for name, part in parts.items()}
    return redistributed(sizes, {name: engine.owned(part) for name, part in parts.items()}, ranks)


def redistributed(
    sizes: Mapping[str, int],
    owned: Mapping[str, tuple[int, int]],
    ranks: Iterable[Mapping[str, Mapping[str, Any]]],
) -> States:
    """Returns the states of a rank, made of the `own_states` of all ranks of some world, in their order. ``sizes``: the
    number of elements of each parameter. ``owned``: for each parameter the first element that the rank owns, and how
    many. Only one element of ``ranks`` is held at a time. Raises ValueError where the states do not add up to whole
    parameters."""
    ends = dict.fromkeys(owned, 0)
    own: States = {name: {} for name in owned}
    for states in ranks:
        _require_known(states, owned)
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
    for name, end in ends.items():
        if end not in (0, sizes[name]):  # 0: nothing is kept of its elements
            raise ValueError(
                f"[{_WHERE}] the states of {name} have {end} of its {sizes[name]} elements: give the "
                f"states of all ranks, in their order"
            )
    return own


def _require_known(states: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if unknown := states.keys() - known.keys():
        raise ValueError(f"[{_WHERE}] there are states of {min(unknown)}, which is not trained here")


def bytes_of(engine: ZeroEngine) -> int:
    """Returns the bytes of this rank's states, in the format in which the optimizer works with them."""
    states = [state for parameter, state in engine.optimizer.state.items() if isinstance(parameter, Tensor)]
    return sum(local(value).nbytes for state in states for value in state.values() if isinstance(value, Tensor))


def _names_in_order(engine: ZeroEngine) -> list[str]:
    """Returns the names of the parameters in the optimizer's order."""
    names = {part.values: name for name, part in parts_by_name(engine).items()}
    return [names[values] for group in engine.optimizer.param_groups for values in group["params"]]


def _as_its_parameter(name: str, part: OwnPart, value: Any) -> Any:
    if not isinstance(value, Tensor) or value.ndim == 0 or is_sharded(value):
        return value
    count = local(part.values).numel()
    if value.shape != (count,):
        raise ValueError(
            f"[{_WHERE}] expected {count} elements of {name}, which this rank owns, got a state of "
            f"{tuple(value.shape)}: give the states of all ranks where another number of ranks has saved them"
        )
    return as_shard(value, part.values)
