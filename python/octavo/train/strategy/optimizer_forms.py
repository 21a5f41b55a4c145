# SPDX-License-Identifier: Apache-2.0
"""The two forms of the optimizer's state: with ZeRO parts by the parameter's name, without it torch's ``state_dict``.
Each can be made of the other, because a whole state is the part of a rank that has everything. So a run may change from
one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from octavo.train.strategy.base import State
from octavo.zero.optimizer_state import States, decoded, redistributed

IS_SHARED_OUT = "is_shared_out"
"""A key that the common state has in a run with ZeRO, and only there."""
LOST = "what --plan owed to later steps is dropped, because the run changes to or from --zero 0"


def as_parts(saved: State, parameters: Mapping[str, nn.Parameter], order: Iterable[str]) -> States:
    """Returns a whole state as the parts of one rank that has everything. `order`: the names of the optimizer's
    parameters in the order of its groups."""
    names = iter(order)
    states: States = {}
    for group in saved["param_groups"]:
        for place in group["params"]:
            name = next(names)
            state = decoded(saved["state"].get(place, {}), group.get("optim_bits", 32), parameters[name])
            states[name] = {key: _flat(value) for key, value in state.items()}
    return states


def as_state_dict(
    options: list[State], ranks: Iterable[States], parameters: Mapping[str, nn.Parameter], groups: list[list[str]]
) -> State:
    """Returns one ``state_dict`` made of the parts of all ranks, given in rank order. `options`: the saved parameter
    groups. `groups`: the names of the optimizer's parameters in each group."""
    sizes = {name: p.numel() for name, p in parameters.items()}
    whole = redistributed(sizes, {name: (0, size) for name, size in sizes.items()}, ranks)
    places = {name: place for place, name in enumerate(name for group in groups for name in group)}
    state = {
        places[name]: {key: _shaped(value, parameters[name]) for key, value in of_one.items()}
        for name, of_one in whole.items()
        if of_one
    }
    param_groups = [
        saved | {"params": [places[name] for name in group]} for saved, group in zip(options, groups, strict=True)
    ]
    return {"state": state, "param_groups": param_groups}


def names_by_group(optimizer: Any, model: nn.Module) -> list[list[str]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


def _flat(value: Any) -> Any:
    return value.reshape(-1) if isinstance(value, Tensor) and value.ndim > 0 else value


def _shaped(value: Any, parameter: nn.Parameter) -> Any:
    return value.view(parameter.shape) if isinstance(value, Tensor) and value.ndim > 0 else value
