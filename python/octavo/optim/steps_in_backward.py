# SPDX-License-Identifier: Apache-2.0
"""Steps of single parameters as soon as backward has their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from octavo._C import is_gradient_awaited


class Stepper(Protocol):
    """An optimizer that can make the step of one parameter. It is referred to weakly."""

    param_groups: list[dict[str, Any]]

    def _step_one(self, group: dict[str, Any], parameter: Tensor) -> None:
        """Makes the step of a parameter of that group that has a ``grad``."""


@dataclass
class Position:
    """Where a parameter was found last: the number of its group, and its place in the group's list."""

    group: int
    place: int


def step_in_backward(optimizer: Stepper) -> list[RemovableHandle]:
    """From now on, parameters that require a gradient make their step in backward, which then frees the gradient.
    Returns the handles of their hooks. The hooks do not keep the optimizer."""
    return [
        parameter.register_post_accumulate_grad_hook(
            partial(_step_while_alive, weakref.ref(optimizer), Position(number, place))
        )
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
        if parameter.requires_grad
    ]


def are_registered(handles: Sequence[RemovableHandle]) -> bool:
    """Whether one of the handles has not been removed."""
    hooks = ((handle.id, handle.hooks_dict_ref()) for handle in handles)
    return any(number in (of_parameter or ()) for number, of_parameter in hooks)


def require_unawaited(optimizer: object, parameter: Tensor) -> None:
    """Raises RuntimeError where something reads the parameter's gradient after backward has computed it."""
    if is_gradient_awaited(parameter):
        raise RuntimeError(
            f"[optim.{type(optimizer).__name__}] the gradient of a {tuple(parameter.shape)} parameter is read after "
            f"backward has it, as DistributedDataParallel does to average it: a step in backward would come before "
            f"that, with only this rank's gradient. Call step() after backward instead, or shard with fully_shard"
        )


def _step_while_alive(optimizer: weakref.ref[Stepper], position: Position, parameter: Tensor) -> None:
    """The hook of a parameter. It refers weakly to the optimizer, which has the parameter and its states: a hook in
    autograd must not keep it, because the garbage collector does not see what autograd keeps in a parameter."""
    alive = optimizer()
    if alive is None:
        raise RuntimeError(
            f"[optim.step_in_backward] the optimizer that steps a {tuple(parameter.shape)} parameter in backward is "
            f"gone: keep it as long as the model trains, or call remove() of what step_in_backward() returned"
        )
    group = _group_of(alive.param_groups, parameter, position)
    if group is None or parameter.grad is None:  # it was taken out of the optimizer; another hook has taken it
        return
    require_unawaited(alive, parameter)
    alive._step_one(group, parameter)
    parameter.grad = None


def _group_of(groups: list[dict[str, Any]], parameter: Tensor, position: Position) -> dict[str, Any] | None:
    """Returns the parameter's group as it is now, because programs sort groups, remove some, and load them anew. It
    looks at the position first, and searches only where the parameter is not there any more."""
    if position.group < len(groups):
        group = groups[position.group]
        if position.place < len(group["params"]) and group["params"][position.place] is parameter:
            return group
    for number, group in enumerate(groups):
        for place, other in enumerate(group["params"]):
            if other is parameter:
                position.group, position.place = number, place
                return group
    return None
