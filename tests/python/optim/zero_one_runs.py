# SPDX-License-Identifier: Apache-2.0
"""What the tests of ZeroOneAdam share: the published rule in plain torch, and runs of a model joined to it."""

from __future__ import annotations

from typing import Any

import torch
from lion_runs import Given, gradients_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import ZeroOneAdam

LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.99), 1e-3, 0.1
SCHEDULE = dict(var_freeze_step=8, var_update_scaler=2, local_step_scaler=4, local_step_clipper=4)
KINDS = "vvvsvsvs ssss lsls llls llls llls".replace(" ", "")
"""The kinds of the first steps of SCHEDULE: variance, sync or local."""


def build(parameters: Any, **options: Any) -> ZeroOneAdam:
    given = dict(lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, variance_floor=0.0, **SCHEDULE)
    return ZeroOneAdam(parameters, **{**given, **options})


def wrap(
    plan: str = "dense", module: nn.Module | None = None, ddp_options: dict | None = None, **options: Any
) -> tuple[DistributedDataParallel, Any, ZeroOneAdam]:
    """Returns a model, its handle and its optimizer."""
    module = Given() if module is None else module
    compress_options = {key: options.pop(key) for key in ("scaler", "timeout_s") if key in options}
    optimizer = build(module.parameters(), **options)
    model = DistributedDataParallel(module, **(ddp_options or {}))
    return model, octavo.compress(model, plan, optimizer=optimizer, **compress_options), optimizer


def run_step(model: nn.Module, optimizer: ZeroOneAdam, gradients: list[Tensor]) -> None:
    optimizer.zero_grad()
    model(*gradients).backward()
    optimizer.step()


class Published:
    """Algorithm 1 of the paper for all ranks at once, in float64, with AdamW's corrections and decoupled weight decay.
    It has one tensor: `x[rank]`, `m[rank]` and `u[rank]` are a rank's, `v` is that of all ranks, and `common` is the
    parameter at the last sync."""

    def __init__(self, parameter: Tensor, world_size: int):
        self.betas = BETAS
        self.common = parameter.detach().double().clone()
        self.x = [self.common.clone() for _ in range(world_size)]
        self.m, self.u = ([torch.zeros_like(self.common) for _ in self.x] for _ in range(2))
        self.v = torch.zeros_like(self.common)
        self.steps = self.updates = 0
        self.total, self.decay = 0.0, 1.0

    def step(self, kind: str, gradients: list[Tensor | None], lr: float = LR) -> None:
        """Makes a step. `gradients`: by rank; None for a rank that leaves a local step out."""
        beta1, beta2 = self.betas
        self.steps += 1
        size = lr / (1 - beta1**self.steps)
        if kind == "v":
            self.updates += 1
            mean = sum(gradient.double() for gradient in gradients) / len(gradients)
            self.v = beta2 * self.v + (1 - beta2) * mean.square()
            self.m = [beta1 * m + (1 - beta1) * mean for m in self.m]
            self.common = self.common * (1 - lr * DECAY) - size * self.m[0] / self.root()
            self.x = [self.common.clone() for _ in self.x]
            return
        self.total += size
        self.decay *= 1 - lr * DECAY
        for rank, gradient in enumerate(gradients):
            if gradient is not None:
                self.m[rank] = beta1 * self.m[rank] + (1 - beta1) * gradient.double()
                self.u[rank] = self.u[rank] + size * self.m[rank]
                self.x[rank] = self.x[rank] - size * self.m[rank] / self.root()
        if kind == "s":
            self.end_round()

    def end_round(self) -> None:
        mean = sum(self.u) / len(self.u)
        self.common = self.common * self.decay - mean / self.root()
        self.x = [self.common.clone() for _ in self.x]
        self.m = [mean / self.total for _ in self.m]
        self.u = [torch.zeros_like(mean) for _ in self.u]
        self.total, self.decay = 0.0, 1.0

    def root(self) -> Tensor:
        return (self.v / (1 - BETAS[1] ** self.updates)).sqrt() + EPS


def published_of(module: nn.Module, world_size: int) -> list[Published]:
    return [Published(parameter, world_size) for parameter in module.parameters()]


def step_published(
    published: list[Published], kind: str, step: int, world_size: int, without: set[int] | None = None
) -> None:
    """Makes a step of the reference. `without`: ranks that leave the step out."""
    given = [gradients_of(rank, step) for rank in range(world_size)]
    for i, one in enumerate(published):
        one.step(kind, [None if rank in (without or ()) else given[rank][i] for rank in range(world_size)])


def require_close(module: nn.Module, published: list[Published], rank: int, words: str) -> None:
    """Requires that parameters, which are of size 1, are within a few units in their last place of the float64
    reference."""
    for parameter, one in zip(module.parameters(), published, strict=True):
        torch.testing.assert_close(
            parameter.detach().double(), one.x[rank], rtol=1e-6, atol=2e-6, msg=lambda text: f"{words}: {text}"
        )
