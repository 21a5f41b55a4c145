# SPDX-License-Identifier: Apache-2.0
"""Runs of the optimizers, shared by the tests of states, of options and of what programs do with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from octavo import _C, optim

SIZES = ((70, 65), (4097,), (3,), ())
# All optimizers by name, with the options that they cannot do without.
MAKERS: dict[str, Callable[..., Any]] = {
    name: getattr(optim, name)
    for name in optim.__all__
    if isinstance(getattr(optim, name), type) and name not in ("OneBitAdamW", "OneBitLamb", "ZeroOneAdam")
} | {
    "OneBitAdamW": partial(optim.OneBitAdamW, warmup_steps=2),
    "OneBitLamb": partial(optim.OneBitLamb, warmup_steps=2),
    "ZeroOneAdam": partial(optim.ZeroOneAdam, var_freeze_step=2, local_step_scaler=2),
}


def randn(seed: int, shape: Any) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameters_of(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(randn(number, size).to(dtype)) for number, size in enumerate(SIZES)]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    for number, parameter in enumerate(parameters):
        parameter.grad = randn(100 * step + number, parameter.shape).to(parameter.dtype)


def run(make: Any, steps: range, parameters: list[nn.Parameter] | None = None, **options: Any) -> Any:
    """Makes some steps and returns the parameters and the optimizer."""
    parameters = parameters_of() if parameters is None else parameters
    optimizer = make(parameters, **options)
    go_on(optimizer, steps)
    return parameters, optimizer


def go_on(optimizer: torch.optim.Optimizer, steps: range) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        give_gradients(parameters, step)
        optimizer.step()


def tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Returns the parameters and all state, in order."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.detach() for p in parameters] + [t for p in parameters for t in optimizer.state[p].values()]


def same(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> bool:
    pairs = zip(tensors_of(a), tensors_of(b), strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y) for x, y in pairs)


def is_all_paged(optimizer: torch.optim.Optimizer) -> bool:
    states = [(name, t) for state in optimizer.state.values() for name, t in state.items()]
    return bool(states) and all(_C.is_managed(t) == (name != "step") for name, t in states)
