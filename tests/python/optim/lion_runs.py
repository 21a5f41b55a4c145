# SPDX-License-Identifier: Apache-2.0
"""What the tests of Lion, Distributed Lion, Signum and OneBitLamb share: Lion in ten lines, a model joined to its
optimizer, and a run that is saved and loaded in the middle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from ddp_runs import batch_of, digest
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import DistributedLion, Signum

OPTIMIZERS = ("signum", "lion")
BETAS = {"signum": (0.9, 0.9), "lion": (0.9, 0.99)}


def build(name: str, parameters, **options):
    return (Signum if name == "signum" else DistributedLion)(parameters, **{"lr": 1e-2, **options})


def update_of(momentum: Tensor, gradient: Tensor, betas: tuple[float, float]) -> Tensor:
    """Returns the update that a rank sends, and turns `momentum` into the one that the rank keeps."""
    update = momentum * betas[0] + gradient * (1 - betas[0])
    momentum.copy_(momentum * betas[1] + gradient * (1 - betas[1]))
    return update


def move(parameter: Tensor, update: Tensor, lr: float, weight_decay: float) -> None:
    parameter.copy_(parameter * (1 - lr * weight_decay) - update.sign() * lr)


class Given(nn.Module):
    """A model whose gradients are its inputs: those of a matrix, which is encoded, and of a bias, which is sent in
    float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.bias = nn.Parameter(torch.randn(64, 40)), nn.Parameter(torch.randn(40))

    def forward(self, weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
        return (self.weight * weight_gradient).sum() + (self.bias * bias_gradient).sum()


def gradients_of(rank: int, step: int) -> list[Tensor]:
    """Returns the gradients of the matrix and the bias. A fifth of the matrix's elements are exact zeros."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    weight, bias = torch.randn(64, 40, generator=generator), torch.randn(40, generator=generator)
    return [weight * (torch.rand(64, 40, generator=generator) > 0.2), bias]


def wrap(
    name: str, plan: str = "sign-vote", module: nn.Module | None = None, ddp_options: dict | None = None, **options
):
    """Returns a model, its handle and its optimizer, which was built before DDP wrapped the model."""
    module = Given() if module is None else module
    compress_options = {key: options.pop(key) for key in ("scaler",) if key in options}
    optimizer = build(name, module.parameters(), **options)
    model = DistributedDataParallel(module, **(ddp_options or {}))
    return model, octavo.compress(model, plan, optimizer=optimizer, **compress_options), optimizer


def learning_curve(
    rank: int, make: Callable[[], tuple[Any, Any, Any]], stop: int | None
) -> tuple[list[tuple[float, str]], Any, Any]:
    """Returns losses and digests of 30 steps of a model that `make` builds with its handle and its optimizer, and these
    two. At `stop` everything is saved, built anew and loaded."""
    model, handle, optimizer = make()
    curve = []
    for step in range(30):
        if step == stop:
            saved = model.module.state_dict(), handle.state_dict(), copy.deepcopy(optimizer.state_dict())
            model, handle, optimizer = make()
            model.module.load_state_dict(saved[0])
            handle.load_state_dict(saved[1])
            optimizer.load_state_dict(saved[2])
        tokens = batch_of(rank, 0)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (7 * tokens.flatten() + 3) % 50)
        loss.backward()
        optimizer.step()
        curve.append((loss.item(), digest(model)))
    return curve, handle, optimizer
