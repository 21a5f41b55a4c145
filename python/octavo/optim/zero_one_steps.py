# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the steps of 0/1 Adam, by the operators in C++. ``ZeroOneAdam`` decides which of them is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

OwnTensors = Mapping[Tensor, tuple[Tensor, Tensor]]  # the momentum of a parameter, and its updates since the last sync


class ParameterStep(NamedTuple):
    """A parameter with its state and its group, and the rates of the step under way: the group may have others by
    now."""

    parameter: Tensor
    state: dict[str, Any]
    group: dict[str, Any]
    lr: float
    weight_decay: float

    @property
    def is_known(self) -> bool:
        """Whether a variance step has learnt from its gradient."""
        return "preconditioner" in self.state


def step_size(lr: float, beta: float, step: int) -> float:
    """Returns the size of the step of this number, with the correction of the momentum for its start at zero."""
    return lr / (1 - beta**step)


def learn_variance(steps: Iterable[ParameterStep], own: OwnTensors) -> None:
    """Makes a variance step of parameters that have a state."""
    alike: dict[tuple[float, ...], list[ParameterStep]] = {}  # by what may differ from group to group
    for one in steps:
        options = (*one.group["betas"], one.group["eps"], one.group["variance_floor"])
        alike.setdefault(options, []).append(one)
    for options, of_options in alike.items():
        _learn_variance_alike(of_options, options, own)


def _learn_variance_alike(steps: list[ParameterStep], options: tuple[float, ...], own: OwnTensors) -> None:
    """Makes a variance step in one call: where it finds no memory, nothing has changed."""
    torch.ops.octavo.zero_one_variance_(
        [one.parameter for one in steps],
        [one.parameter.grad for one in steps],
        [own[one.parameter][0] for one in steps],
        [one.state["exp_avg_sq"] for one in steps],
        [one.state["preconditioner"] for one in steps],
        [one.state["step"] + 1 for one in steps],
        [one.state["variance_step"] + 1 for one in steps],
        [one.lr for one in steps],
        [one.weight_decay for one in steps],
        *options,
    )
    for one in steps:
        one.state["step"] += 1
        one.state["variance_step"] += 1
        one.state.pop("anchor", None)  # all ranks move together: the next round begins elsewhere


def decay_weights(steps: Iterable[ParameterStep]) -> None:
    """Makes AdamW's step with a gradient of zeros."""
    for one in steps:
        one.parameter.mul_(1 - one.lr * one.weight_decay)


def move_locally(steps: list[ParameterStep], own: OwnTensors, beta: float) -> None:
    """Makes a local step, which has been counted already."""
    torch.ops.octavo.zero_one_local_(
        [one.parameter for one in steps],
        [one.parameter.grad for one in steps],
        [one.state["preconditioner"] for one in steps],
        [one.state["anchor"] for one in steps],
        [own[one.parameter][0] for one in steps],
        [own[one.parameter][1] for one in steps],
        beta,
        [step_size(one.lr, beta, one.state["step"]) for one in steps],
    )


def end_round(steps: list[ParameterStep], own: OwnTensors) -> None:
    """Ends a round after updates were averaged: makes the parameters that all ranks have from now on, and begins the
    next round. Where it finds no memory, nothing has changed."""
    torch.ops.octavo.zero_one_sync_(
        [one.parameter for one in steps],
        [one.state.get("anchor", one.parameter) for one in steps],  # no local step: it is its own anchor
        [own[one.parameter][0] for one in steps],
        [own[one.parameter][1] for one in steps],
        [one.state["decay"] for one in steps],
        [one.state["total"] for one in steps],
    )
    for one in steps:
        one.state.update(total=0.0, decay=1.0)


def move_by_adamw(steps: Iterable[ParameterStep]) -> None:
    """Makes a step of plain AdamW."""
    for parameter, state, group, lr, weight_decay in steps:
        moments, options = (state["exp_avg"], state["exp_avg_sq"]), (*group["betas"], group["eps"])
        torch.ops.octavo.adamw_(parameter, parameter.grad, *moments, state["step"] + 1, lr, *options, weight_decay)
        state["step"] += 1
